"""Public names of torch that interception does not see: which there are, and which of them no tensor can go through."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.autograd.graph
import torch.func
import torch.library
import torch.nn.utils
from torch.overrides import get_testing_overrides

NAMESPACES: dict[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
    "torch.autograd.graph": torch.autograd.graph,
    "torch.utils": torch.utils,
    "torch.nn.utils": torch.nn.utils,
    "torch.func": torch.func,
    "torch.library": torch.library,
}


def unseen_callables() -> list[str]:
    """Dotted names of the public callables that torch does not say it intercepts."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = {id(func) for func in get_testing_overrides()}
        for prefix, namespace in NAMESPACES.items():
            for name in dir(namespace):
                value = getattr(namespace, name, None)
                if callable(value) and not name.startswith("_") and id(value) not in seen and value not in _INTERCEPTED:
                    found.append(f"{prefix}.{name}")
    return found


#: Bound and slot methods have a new identity each time: they are compared.
_INTERCEPTED = [func for func in get_testing_overrides() if not hasattr(func, "__code__")]

#: Why no tensor that requires grad can lose its gradient there, with the names.
NOT_CALLED: dict[str, str] = {
    "a class of TorchScript's or of its files, made of no tensor": """
        AggregationType AliasDb AnyType Argument ArgumentSpec AwaitType Block BoolType BufferDict CallStack Capsule ClassType Code
        CompilationUnit CompleteArgumentSpec ComplexType ConcreteModuleType ConcreteModuleTypeBuilder DeepCopyMemoTable
        DeserializationStorageContext DeviceObjType DictType EnumType ErrorReport ExecutionPlan FileCheck FloatType FunctionSchema
        FutureType Gradient Graph GraphExecutorState IODescriptor InferredType IntType InterfaceType ListType LiteScriptModule
        LockingLogger LoggerBase ModuleDict Node NoneType NoopLogger NumberType OperatorInfo OptionalType ParameterDict PyObjectType
        PyTorchFileReader PyTorchFileWriter RRefType ScriptClass ScriptClassFunction ScriptDict ScriptDictIterator
        ScriptDictKeyIterator ScriptFunction ScriptList ScriptListIterator ScriptMethod ScriptModule ScriptModuleSerializer
        ScriptObject ScriptObjectProperty SerializationStorageContext StaticModule StreamObjType StringType SymBoolType SymIntType
        TensorType TracingState TupleType Type UnionType Use Value import_ir_module import_ir_module_from_buffer
        merge_type_from_type_comment parse_ir parse_schema parse_type_comment unify_type_list BenchmarkConfig
        BenchmarkExecutionStats ThroughputBenchmark utils.ThroughputBenchmark""",
    "an error": "AcceleratorError FatalError JITException OutOfMemoryError linalg.LinAlgError",
    "memory without a history: a storage": """
        BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage DoubleStorage FloatStorage
        HalfStorage IntStorage LongStorage QInt32Storage QInt8Storage QUInt2x4Storage QUInt4x2Storage QUInt8Storage ShortStorage
        Storage StorageBase TypedStorage UntypedStorage is_storage""",
    "tensors of integers, which have no gradient": "BoolTensor ByteTensor CharTensor IntTensor LongTensor ShortTensor",
    "a kind of value that is no tensor": """
        DispatchKey DispatchKeySet Event ExcludeDispatchKeyGuard Future Generator Size Stream SymBool SymFloat SymInt Tag classproperty
        device dtype finfo iinfo layout memory_format qscheme thread_safe_generator""",
    "reads or sets the state of the process, or asks about types": """
        are_deterministic_algorithms_enabled autocast_decrement_nesting autocast_increment_nesting can_cast clear_autocast_cache
        compiled_with_cxx11_abi cudnn_is_acceptable get_autocast_cpu_dtype get_autocast_dtype get_autocast_gpu_dtype
        get_autocast_ipu_dtype get_autocast_xla_dtype get_default_device get_default_dtype get_deterministic_debug_mode
        get_device_module get_file_path get_float32_matmul_precision get_num_interop_threads get_num_threads get_rng_state
        init_num_threads initial_seed is_anomaly_check_nan_enabled is_anomaly_enabled is_autocast_cache_enabled
        is_autocast_cpu_enabled is_autocast_enabled is_autocast_ipu_enabled is_autocast_xla_enabled
        is_deterministic_algorithms_warn_only_enabled is_grad_enabled is_inference_mode_enabled is_tensor is_vulkan_available
        is_warn_always_enabled manual_seed prepare_multiprocessing_environment
        profiler_allow_cudagraph_cupti_lazy_reinit_cuda12 promote_types result_type seed set_anomaly_enabled set_autocast_cache_enabled
        set_autocast_cpu_dtype set_autocast_cpu_enabled set_autocast_dtype set_autocast_enabled set_autocast_gpu_dtype
        set_autocast_ipu_dtype set_autocast_ipu_enabled set_autocast_xla_dtype set_autocast_xla_enabled set_default_device
        set_default_dtype set_default_tensor_type set_deterministic_debug_mode set_float32_matmul_precision set_flush_denormal
        set_num_interop_threads set_num_threads set_printoptions set_rng_state set_warn_always sym_constrain_range
        sym_constrain_range_for_size sym_fresh_size typename use_deterministic_algorithms broadcast_shapes
        autograd.graph.set_override_stale_capture_stream autograd.graph.set_warn_on_accumulate_grad_stream_mismatch
        utils.generate_methods_for_privateuse1_backend utils.get_cpp_backtrace utils.rename_privateuse1_backend utils.set_module
        library.get_ctx library.infer_schema library.fallthrough_kernel library.get_kernel""",
    "made of sizes and numbers, takes no tensor": """
        bartlett_window blackman_window empty empty_permuted empty_quantized empty_strided eye from_file frombuffer hann_window
        ones rand randint randn randperm tril_indices triu_indices zeros fft.fftfreq
        fft.rfftfreq Tensor.stride""",
    "of the GPU's or another device's library alone": """
        cudnn_affine_grid_generator cudnn_batch_norm cudnn_convolution cudnn_convolution_add_relu cudnn_convolution_relu
        cudnn_convolution_transpose cudnn_grid_sampler miopen_ctc_loss nn.functional.grouped_mm nn.functional.scaled_grouped_mm
        nn.functional.scaled_mm HalfTensor BFloat16Tensor""",
    "raises in this torch, whatever it is given: removed": """
        eig lstsq matrix_rank solve symeig Tensor.eig Tensor.lstsq Tensor.solve Tensor.symeig Tensor.reinforce""",
    "a name of Python's that the module imports": """
        nn.functional.Callable nn.functional.DType nn.functional.Optional nn.functional.ScalingType nn.functional.SwizzleType
        autograd.graph.Any autograd.graph.Callable autograd.graph.Generator autograd.graph.Iterable autograd.graph.Iterator
        autograd.graph.Literal autograd.graph.MutableMapping autograd.graph.NamedTuple autograd.graph.Optional autograd.graph.Sequence
        autograd.graph.TypeAlias autograd.graph.Union autograd.graph.WeakKeyDictionary autograd.graph.WeakValueDictionary
        autograd.graph.cast autograd.graph.defaultdict autograd.graph.deque autograd.graph.RemovableHandle
        autograd.graph.TorchDispatchMode autograd.graph.Node library.Any library.Callable library.EffectType library.OpOverload
        library.ParamSpec library.Sequence library.TypeVar library.Union library.deprecated library.overload""",
    "asks for interception, or wraps functions; not a call": """
        nn.functional.assert_int_or_pair nn.functional.boolean_dispatch nn.functional.handle_torch_function
        nn.functional.has_torch_function nn.functional.has_torch_function_unary nn.functional.has_torch_function_variadic""",
    "describes an op of a library, which `test_library_ops.py` calls": """
        library.CustomOpDef library.Library library.custom_op library.define library.impl library.impl_abstract
        library.register_autocast library.register_autograd library.register_fake library.register_kernel
        library.register_torch_dispatch library.register_vmap library.triton_op library.wrap_triton library.opcheck""",
    "quantized: torch gives no gradient there": """
        quantized_gru quantized_lstm mkldnn_rnn_layer mkldnn_linear_backward_weights""",
    "works on modules, whose parameters are not made anew": """
        nn.utils.convert_conv2d_weight_memory_format nn.utils.convert_conv3d_weight_memory_format nn.utils.skip_init
        nn.utils.remove_spectral_norm nn.utils.remove_weight_norm func.replace_all_batch_norm_modules_""",
    "a plain number or a file of tensors without histories": "load GradScaler",
    "needs a compiler": "compile autograd.graph.region_activation_memory_budget",
    "only on tensors of a transform": "func.debug_unwrap",
}

EXCEPTED = {f"torch.{name}": reason for reason, names in NOT_CALLED.items() for name in names.split()}
