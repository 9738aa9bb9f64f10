"""What some methods must be given before they can adapt, trained on source images: TTT's branch, DDA's diffusion model."""
