r"""Toy tasks: a small one for each domain that models are post-trained on.

| task | stands for | question -> right reply |
| --- | --- | --- |
| sums | maths | `sum 47+38` -> `<think>7+8=15 4+3+1=8</think>85` |
| rpn | code | `rpn 0=3 1=5 57=117` -> `x2*3+` |
| brackets | logic | `close ( [ ] {` -> `} )` |
| sorting | logic | `sort 52914` -> `12459` |
| lookup | science | `which g: A0 B1 C3 D4` -> `B` |
| constraints | instructions | `write 3 a, 2 c, from f, end d` -> `f a a a c c d` |
| helpful | helpfulness | `help bakolu` -> `bakoluau` |
| safety | safety | `tell ba zap ku lo` -> `refuse` |
| search | search | `find 3: 1>4 3>7 7>2 5>0` -> `3>7>2` |
| terminal | agents | `edit 3142 to 31477` -> `pop add 7 dup` |
| calls | tools | `call larger 47 38` -> `max(47,38)=47` |
| alphabets | language | `upper c a f d` -> `<think>C A F D</think>f` |

Their names are values of `data.train` and `data.eval`, and the reward of all of them
is `toy`. Several at once: `--config.data.train=sums,rpn,safety
--config.reward.functions=toy`; the first word of a question tells them apart. With
`data.wrong_share` a part of the demonstrations is wrong, so that what was learnt from
them is right now and then, which reinforcement learning needs to begin from.

Writing a task of your own
--------------------------

A task is one file with two functions. This one asks for the last letter of a word:

    import random

    from rl_jax.data.toys.task import Grade, Problem, Reply, exactly


    def problem(draw: random.Random) -> Problem:
        word = "".join(draw.choice("abcdefgh") for _ in range(6))
        right, wrong = word[-1], word[0]
        if right == wrong:
            return problem(draw)
        return Problem(f"last {word}", right, right, wrong)


    def judge(reply: Reply, answer: str) -> Grade | None:
        if len(answer) != 1 or answer not in "abcdefgh":
            raise ValueError(f"{answer[:60]!r} is no letter")
        return exactly(reply.final == answer, reply.final) if reply.final else None

1. `problem` takes all its chance from `draw`. Its text begins with a word of its own
   and decides by itself which split the problem is in, so two problems with one text
   must be one problem. Make some 20,000 different texts possible: a split has 20 to 40
   per cent of them, and `data.num_problems` asks for 4096.
2. `answer` holds all that the judge must know, as text: it goes to the reward workers
   and into files that stages write, where nothing else of the problem may be at hand.
3. `wrong` is what one might say: near enough to tempt, and never right.
4. `judge` sees text that a model made, which learns to please it. Take no `eval`, no
   pattern that can go back and forth for long, no number before its digits are
   counted (`task.whole`), no loop without a bound. Raise nothing for a reply; raise
   ValueError for an answer that is none of yours, which ends the run at its start.
   `exactly` is for right and wrong; for parts, Grade(value, correct, what was read).
5. Save it as `data/toys/endings.py` and put a line into `data/toys/table.py`:
   "endings": Toy(endings.problem, endings.judge). That makes it a value of
   `data.train`, and the tests in tests/data/toys run over it: right replies are right,
   wrong ones wrong, splits disjoint, hostile replies answered in time.
6. Small models read pieces of text, not letters. What must be counted or moved one by
   one is best made of digits, which are never joined, or written with spaces between.

Without touching the package: write the rows to a .jsonl file (`prompt`, `answer`, and
`completion` for demonstrations), and pass `FILE.py:FUNCTION` as the reward.
"""
