"""Row-wise ops: softmax, normalisation, reductions and pooling."""
