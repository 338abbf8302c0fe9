"""GPU kernels, written in Triton. Imported where they are used, and only there: a CPU needs no Triton."""
