"""Why a primitive without a lowering has none, and what to do about it."""

from __future__ import annotations

__all__ = ["reason"]

_REASONS = {
    "a random number drawn at run time: draw it outside and pass it as an input, or with a fixed key": (
        *("philox2x32", "philox4x32", "random_bits", "random_clone", "random_fold_in", "random_gamma", "random_seed", "random_split"),
        *("random_unwrap", "random_wrap", "rng_bit_generator", "rng_uniform", "threefry2x32", "threefry4x32", "iota_2x32_shape"),
    ),
    "a special function that has no op": (
        *("bessel_i0e", "bessel_i1e", "digamma", "erf_inv", "igamma", "igamma_grad_a", "igammac", "lgamma", "nextafter", "polygamma"),
        *("regularized_incomplete_beta", "zeta", "clz", "mulhi", "population_count"),
    ),
    "a product that has no op: write it with jnp.einsum": ("ragged_dot_general", "scaled_dot"),
    "linear algebra has no ops": (
        *("cholesky", "cholesky_update", "custom_linear_solve", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product", "lu"),
        *("lu_pivots_to_permutation", "ormqr", "qr", "schur", "svd", "symmetric_product", "triangular_solve", "tridiagonal"),
        "tridiagonal_solve",
    ),
    "complex numbers have no element type in the graph format": ("complex", "conj", "fft", "imag", "real"),
    "a communication between devices": (
        *("all_gather", "all_gather_done", "all_gather_invariant", "all_gather_reduced", "all_gather_reduced_start", "all_gather_start"),
        *("all_to_all", "all_to_all_done", "all_to_all_start", "axis_index", "pbroadcast_done", "pmax", "pmin", "ppermute"),
        *("ppermute_done", "ppermute_start", "precv", "preduced", "psend", "psum", "psum_done", "psum_invariant"),
        *("psum_invariant_start", "psum_start", "ragged_all_to_all", "reduce_scatter", "reduce_scatter_done", "reduce_scatter_start"),
        *("reduced_vary_cast_p", "shard_map", "unreduced_psum", "unreduced_psum_start", "unreduced_reduce_scatter"),
        *("unreduced_reduce_scatter_start", "vary_unreduced_cast_p", "custom_partitioning", "inspect_sharding"),
    ),
    "a call out of the program: compute this outside": (
        *("after_all", "create_token", "call_exported", "debug_callback", "debug_print", "ffi_call", "io_callback", "pure_callback"),
        *("create_linear", "run_state", "unreachable", "remat_opt", "to_edtype", "from_edtype"),
    ),
    "a kernel for accelerators": (
        *("dot_product_attention_bwd_wrapper", "dot_product_attention_fp8_bwd_wrapper", "dot_product_attention_fp8_fwd_wrapper"),
        *("dot_product_attention_fwd_wrapper", "scaled_matmul_wrapper", "broadcast_to"),
    ),
    "only gradients have this: export the forward function": (
        "select_and_gather_add",
        "select_and_scatter",
        "select_and_scatter_add",
        "linear_call",
    ),
    "a size that is known at run time only": ("dim_as_value", "dimension_size", "shape_assertion"),
    "a reduction by a function of one's own over windows this large": ("reduce_window",),
}
_BY_PRIMITIVE = {primitive: text for text, primitives in _REASONS.items() for primitive in primitives}


def reason(primitive: str) -> str:
    """Returns why a primitive is refused, empty if this is none that was thought of."""
    return _BY_PRIMITIVE.get(primitive, "")
