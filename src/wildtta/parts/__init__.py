"""What methods are made of: objectives, the centroid bank, recovery, updates. Tensors in, tensors out, no network."""
