"""The page about performance says what was measured, and nothing else."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from script_files import loaded

ROOT = Path(__file__).parents[2]


loaded("scripts/performance_cells.py")
loaded("scripts/performance_scaling.py")
writer = loaded("scripts/performance_page.py")
timing = loaded("benchmarks/timing.py")
profiling = loaded("benchmarks/profiling.py")

MACHINE = {"device": "a made-up GPU", "kind": "cuda", "torch": "9.9.9", "python": "3.99"}
MODEL = {"weights": 1_230_000_000, "layers": 16, "heads": [32, 8, 64], "dtype": "bfloat16"}
SMALL, LARGE = 512, 65536
BY_LENGTH = {
    SMALL: {
        "forward": {"ms": 10.0, "gib": 0.1},
        "GI": {"ms": 40.0, "gib": 4.0},
        "captum": {"skipped": "ModuleNotFoundError: No module named 'captum'"},
        "conserva ah+ln": {"ms": 30.0, "gib": 1.0},
    },
    LARGE: {
        "forward": {"ms": 1000.0, "gib": 1.0},
        "GI": {"skipped": "out of memory"},
        "conserva ah+ln": {"ms": 20_000.0, "gib": 24.2},
    },
}
ON_A_CPU = {"ratios": {"forward": 1.0, "conserva ah+ln": 1.44}, "torch": "9.9.9", "threads": 2}
MEASURED: dict[str, Any] = {
    "longcontext": {
        "machine": MACHINE,
        "model": MODEL,
        "rows": [
            {"tokens": tokens, "contenders": found, "plans": {"conserva ah+ln": f"plan of {tokens}"}}
            for tokens, found in BY_LENGTH.items()
        ],
    },
    "single_calls": {
        "machine": MACHINE,
        "rows": [
            {
                "model": "a small model",
                "size": "1 x 32",
                "contenders": {"forward": {"ms": 5.0}, "GI": {"ms": 12.5}, "exact": {"skipped": "out of memory"}},
                "to GI": {"forward": 0.4, "GI": 1.0},
            }
        ],
    },
    "scaling": {
        "machine": MACHINE,
        "sweeps": {
            "tokens": {
                "what": "a Llama of 3 layers, one text",
                "rows": [
                    {
                        "size": size,
                        "rounds": rounds,
                        "contenders": {"forward": {"ms": 10.0, "gib": 1.0}, "GI": gi, "ah+ln": {"ms": ms, "gib": 4.0}},
                        "to forward": {"ah+ln": ms / 10},
                        "plans": {"ah+ln": plan},
                    }
                    for size, rounds, plan, gi, ms in (
                        (256, 9, "whole", {"ms": 25.0, "gib": 8.0}, 70.0),
                        (512, 9, "whole", {"ms": 25.0, "gib": 8.0}, 20.0),
                        (1024, 3, "recompute", {"ms": 30.0, "gib": 8.0}, 15.0),
                        (2048, 0, "recompute", {"skipped": "out of memory"}, 12.5),
                    )
                ],
                "exponents": {
                    "forward": {"sizes": [512, 2048], "time": 2.0, "memory": 1.0},
                    "GI": {"sizes": [512, 1024], "time": 1.0, "memory": 1.0},
                    "ah+ln": {"sizes": [512, 2048], "time": 1.585, "memory": 0.585},
                },
            },
            "batch": {
                "what": "a BERT",
                "rows": [
                    {
                        "size": 16,
                        "rounds": 9,
                        "contenders": {"forward": {"ms": 5.0, "gib": None}, "ah+ln": {"ms": 7.5, "gib": None}},
                        "to forward": {"forward": 1.0, "ah+ln": 1.5},
                        "plans": {"ah+ln": "whole"},
                    }
                ],
                "exponents": {},
            },
        },
    },
    "million": {
        "machine": MACHINE,
        "model": MODEL,
        "rows": [{"tokens": 2**20, "ms": 500_000.0, "gib": 33.3, "plan": "in pieces", "finite": True}],
    },
    "profile": {
        "machine": MACHINE,
        "model": MODEL,
        "rows": [
            {
                "tokens": 4096,
                "span_ms": 50.0,
                "groups_ms": {"matrix products": 30.0, "idle": 20.0},
                "limit_ms": {"matrix products": 20.0},
                "ceilings": {"tflops": 790.0, "terabytes a second": 4.3},
            }
        ],
    },
    "attention": {
        "machine": MACHINE,
        "seed": 77,
        "speed": [
            {
                "shape": "2 heads of 3",
                "tokens": 2048,
                "contenders": {
                    "FlashAttention-2": {"ms": 8.0, "tflops": 100.0},
                    "cuDNN": {"ms": 5.0, "tflops": 160.0},
                    "value-only": {"ms": 2.0, "tflops": 400.0},
                },
            }
        ],
        "accuracy": [
            {"case": "causal", "dtype": "bfloat16", "value-only": 1e-3, "torch": 2e-3},
            {"case": "full", "dtype": "bfloat16", "value-only": 3e-3, "torch": 2e-3},
            {"case": "odd", "dtype": "bfloat16", "value-only": "Error: no", "torch": 2e-3},
            {"case": "huge", "dtype": "bfloat16", "value-only": "left to torch", "torch": 2e-3},
        ],
    },
    "throughput": {
        "machine": MACHINE,
        "model": "BERT-base",
        "batch": 64,
        "tokens": 128,
        "sdpa": {
            "contenders": {
                "GI": {"ms": 30.0, "a second": 2133.0},
                "conserva ah+ln": {"ms": 20.0, "a second": 3200.0},
            }
        },
        "explain": {
            "mixed": {
                "texts": 2048,
                "tokens": [6, 128],
                "batches": 31,
                "contenders": {
                    "GI, from texts": {"ms": 400.0, "a second": 5120.0},
                    "conserva.explain ah+ln": {"ms": 800.0, "a second": 2560.0},
                },
            },
        },
    },
    "overhead": {**ON_A_CPU, "model": "BERT-base", "batch": 8, "tokens": 128},
    "overhead-small": {**ON_A_CPU, "model": "small", "batch": 1, "tokens": 32},
}
HEADINGS = {
    "longcontext": "## By length",
    "single_calls": "## A single call",
    "scaling": "## Cost against size",
    "million": "## The longest text",
    "profile": "## Where the time goes",
    "attention": "## Attention's backward pass alone",
    "throughput": "## Many short texts",
    "overhead": "## On a CPU",
    "overhead-small": "## On a CPU",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, found in MEASURED.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    return tmp_path


def test_the_stored_page_is_up_to_date() -> None:
    assert writer.PAGE.read_text(encoding="utf-8") == writer.page(writer.RESULTS)


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_not_measured_has_no_section(folder: Path, name: str) -> None:
    whole = writer.page(folder)
    (folder / f"{name}.json").unlink()
    rest = writer.page(folder)
    gone = HEADINGS[name]
    assert gone in whole
    assert gone not in rest
    assert all(heading in rest for heading in HEADINGS.values() if heading != gone)
    assert f"\n{writer.COMMANDS[name]}\n" in whole
    assert f"\n{writer.COMMANDS[name]}\n" not in rest


def test_nothing_measured_is_a_page_without_sections(tmp_path: Path) -> None:
    assert "##" not in writer.page(tmp_path)


SAID = {
    "a ratio and memory": "| 30.0&nbsp;ms<br>0.75&nbsp;x&nbsp;GI<br>1.00&nbsp;GiB |",
    "seconds, where there is no GI to compare": "| 20.0&nbsp;s<br>24.2&nbsp;GiB |",
    "who ran out of memory": "| 65,536 | 1,000&nbsp;ms<br>1.00&nbsp;GiB | out of memory |",
    "who ran out of memory, in words": "- **GI.** `ah+ln` takes 0.75 times its time, less at 1 of 1 lengths; 0.25 "
    "times its memory; at 65,536 tokens it runs out of memory and `ah+ln` does not.",
    "who did not run, and why": "Did not run: `captum`: ModuleNotFoundError: No module named 'captum'.",
    "the size of the model": "1.23 billion random weights in bfloat16: 16 layers, 32 heads of 64, 8 for keys",
    "the machine": "Measured on a made-up GPU, with torch 9.9.9.",
    "the plans": "- 512 tokens: plan of 512\n- 65,536 tokens: plan of 65536",
    "a single call": "| a small model, 1 x 32 | 12.5 ms | 0.40 | out of memory |",
    "what each size costs": "| 2,048 tokens | 10.0&nbsp;ms<br>1.00&nbsp;GiB | out of memory | 1.25&nbsp;x<br>"
    "4.00&nbsp;GiB |\n| batch of 16 | 5.00&nbsp;ms | - | 1.50&nbsp;x |",
    "what grows": "by what grows: tokens, a Llama of 3 layers, one text; batch, a BERT. The Llama is",
    "what ran once": "Measured in a single run: 2,048 tokens.",
    "who ran alone": "Beyond the first size at which GI runs out of memory only the forward pass and `ah+ln` ran.",
    "the plans by size": "How `ah+ln` ran, as it reports itself: whole at 256 and 512 tokens; "
    "recompute at 1,024 and 2,048 tokens.",
    "the sizes of exponents": "over the upper half of the sizes: 512 to 2,048 tokens. Where",
    "exponents": "| exponent of | tokens, time | tokens, memory |",
    "an exponent": "| ah+ln | 1.58 | 0.58 |",
    "an exponent over other sizes": "| GI | 1.00<br>512&nbsp;to&nbsp;1,024&nbsp;tokens | 1.00<br>",
    "how time grows": "- **tokens.** The time of `ah+ln` grows faster than the number of tokens but more slowly than "
    "its square: twice the size costs 3.00 times as much (the forward pass 4.00 times and GI 2.00 times at 512 to "
    "1,024 tokens).",
    "how memory grows": "The memory of `ah+ln` grows more slowly than the number of tokens: twice the size costs 1.50",
    "forward passes over the upper half": "There it takes 1.25 to 2.00 times as long as the forward pass.",
    "the longest text": "tokens by `ah+ln` takes 500 s and 33.3 GiB above the weights; every score is finite.",
    "shares of the time": "| matrix products | 30.0 ms | 60% | 20.0 ms |",
    "what has no limit": "| idle | 20.0 ms | 40% | - |",
    "the limit": "In multiples of that limit it takes 2.50 at 4,096 tokens.",
    "the kernel": "| 2,048 | 8.00&nbsp;ms<br>1.00&nbsp;x<br>100&nbsp;TFLOP/s | 5.00&nbsp;ms<br>0.62&nbsp;x<br>160",
    "the kernel, against the best": "`value-only` takes 0.40 times what the fastest of the others takes.",
    "errors": "| full | 3.0e-03 / 2.0e-03 |\n| odd | did not run / 2.0e-03 |\n| huge | left to torch / 2.0e-03 |",
    "the largest error": "The largest error is 3.0e-03 in bfloat16; errors are 0.50 to 1.50 times torch's.",
    "explanations a second": "| conserva ah+ln | 3,200<br>1.50&nbsp;x |",
    "forward passes on a CPU": "| conserva ah+ln | 1.44 | 1.44 |",
    "explain": "| conserva.explain ah+ln | 2,560<br>0.50&nbsp;x |",
}


@pytest.mark.parametrize("what", SAID)
def test_the_page_says(folder: Path, what: str) -> None:
    assert SAID[what] in writer.page(folder)


def test_the_commands_are_real() -> None:
    for command in writer.COMMANDS.values():
        script = ROOT / command.split()[1]
        options = re.findall(r"(--[a-z]+)", command)
        assert all(f'"{option}"' in script.read_text(encoding="utf-8") for option in options)


def test_rows_measured_again_replace_their_own(tmp_path: Path) -> None:
    path, base = tmp_path / "rows.json", {"machine": MACHINE, "model": MODEL}

    def add(device: str, *rows: dict[str, int]) -> list[dict[str, int]]:
        timing.write_rows(path, {**base, "machine": {**MACHINE, "device": device}, "rows": list(rows)}, "tokens")
        return json.loads(path.read_text(encoding="utf-8"))["rows"]

    add("one", {"tokens": 2, "ms": 1}, {"tokens": 1, "ms": 1})
    assert add("one", {"tokens": 2, "ms": 9}) == [{"tokens": 1, "ms": 1}, {"tokens": 2, "ms": 9}]
    assert add("another", {"tokens": 3, "ms": 5}) == [{"tokens": 3, "ms": 5}]


def test_a_contender_that_fails_is_a_result() -> None:
    def hungry() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def broken() -> None:
        raise ValueError("no such thing\nand more")

    found = timing.compare({"hungry": hungry, "broken": broken, "fine": lambda: None}, 2, torch.device("cpu"))
    assert found["hungry"] == {"skipped": "out of memory"}
    assert found["broken"] == {"skipped": "ValueError: no such thing"}
    assert found["fine"]["ms"] >= 0


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("void pytorch_flash::flash_fwd_kernel<...>", "attention forward"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention backward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3", "attention forward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26", "attention backward"),
        ("_values_gradient", "attention backward"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(AttentionKernel<cutlass::bfloat16_t>)", "attention forward"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matrix products"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<...>>", "elementwise"),
        ("Memcpy DtoD (Device -> Device)", "elementwise"),
        ("something else", "other"),
    ],
)
def test_kernels_have_their_group(kernel: str, group: str) -> None:
    assert profiling.group_of(kernel) == group


def test_what_runs_side_by_side_counts_once() -> None:
    assert profiling.covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0


def test_the_limit_counts_operations_and_bytes() -> None:
    config = SimpleNamespace(
        hidden_size=8,
        intermediate_size=20,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=2,
    )
    tokens, width, endless = 100, 2, float("inf")
    sizes = {"q": (8, 8), "k": (8, 4), "v": (8, 4), "o": (8, 8), "gate": (8, 20), "up": (8, 20), "down": (20, 8)}
    # Queries and keys carry no relevance: their projections run forward alone.
    runs = [sizes[name] for name in sizes] + [sizes[name] for name in sizes if name not in "qk"]

    by_operations = profiling.lower_limit(config, tokens, profiling.Ceilings(1000.0, endless), width)
    products = sum(2 * tokens * a * b for a, b in runs)
    attention = 4 * 2 * (2 * tokens * tokens * 2) / 2  # heads, products, operations of one; a query sees half of them
    assert by_operations["matrix products"] == pytest.approx(3 * products)
    assert by_operations["attention forward"] == by_operations["attention backward"] == pytest.approx(3 * attention)
    assert by_operations["elementwise"] == 0

    by_bytes = profiling.lower_limit(config, tokens, profiling.Ceilings(endless, 1000.0), width)
    assert by_bytes["matrix products"] == pytest.approx(3 * width * sum(tokens * (a + b) + a * b for a, b in runs))
    assert by_bytes["elementwise"] == pytest.approx(3 * width * tokens * (20 * 8 + 2 * (8 + 4) + 8 * 20))
