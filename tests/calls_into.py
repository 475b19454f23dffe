"""Runs the trainer and records which functions of other packages its code calls.

    python calls_into.py OUT.json --config=FILE --workdir=DIR ...

OUT.json gets a sorted list of [package, "rl_jax/file.py function -> their function"].
Only calls out of the body of a function of ours count. A line that runs at import,
such as a decorator, does not.
"""

import json
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = {  # folder under site-packages -> name on PyPI
    "jax": "jax",
    "flax": "flax",
    "optax": "optax",
    "orbax": "orbax-checkpoint",
    "grain": "grain",
    "sentencepiece": "sentencepiece",
    "ml_collections": "ml-collections",
}


def main() -> int:
    out, *arguments = sys.argv[1:]
    ours = (str(ROOT / "rl_jax") + "/", str(ROOT / "kernels") + "/")
    owners: dict[types.CodeType, str] = {}  # "" for what is of no package above
    found: set[tuple[str, str]] = set()

    def owner(code: types.CodeType) -> str:
        if code not in owners:
            _, _, inside = code.co_filename.rpartition("/site-packages/")
            owners[code] = PACKAGES.get(inside.partition("/")[0], "")
        return owners[code]

    def profile(frame: types.FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_back is None or not owner(frame.f_code):
            return
        caller = frame.f_back.f_code
        if caller.co_filename.startswith(ours) and caller.co_name != "<module>":
            file = pathlib.Path(caller.co_filename).relative_to(ROOT)
            called = frame.f_code.co_qualname
            if called.endswith("reraise_with_filtered_traceback"):  # around jax's own
                called = getattr(frame.f_locals.get("fun"), "__qualname__", called)
            line = f"{file} {caller.co_name} -> {called}"
            found.add((owner(frame.f_code), line))

    from rl_jax import train

    sys.setprofile(profile)
    try:
        code = train.main(arguments)
    finally:
        sys.setprofile(None)
    pathlib.Path(out).write_text(json.dumps(sorted(found), indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
