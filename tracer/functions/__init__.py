"""Operations whose backward is the user's own or torch's: custom Functions and checkpoints."""
