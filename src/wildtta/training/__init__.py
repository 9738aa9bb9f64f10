"""What some methods need before they adapt, trained on source images: TTT's branch, DDA's diffusion model."""
