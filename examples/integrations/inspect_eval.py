"""An eval of Inspect whose samples run in nsbox's sandboxes. The model is a script, so it needs no key.

pip install "nsbox[inspect-ai]"
python -P examples/integrations/inspect_eval.py
"""

import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import bash, python
from inspect_ai.util import sandbox

TURNS = [
    ("bash", {"command": "ls; head -n 2 words.txt"}),
    ("python", {"code": "words = open('words.txt').read().split(); open('answer', 'w').write(max(words, key=len))"}),
    ("bash", {"command": "rm -rf ~; cat answer"}),  # it harms nobody
]


def script(messages, tools, choice, config) -> ModelOutput:
    """Call the tools one after the other, then say that it is done."""
    turn = sum(message.role == "assistant" for message in messages)
    if turn < len(TURNS):
        output = ModelOutput.for_tool_call("mockllm/model", *TURNS[turn])
    else:
        output = ModelOutput.from_content("mockllm/model", "It is in the file `answer`.")
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


@scorer(metrics=[accuracy()])
def answer_file():
    """Score what is in the file that the model was asked to write."""

    async def score(state: TaskState, target: Target) -> Score:
        answer = await sandbox().read_file("answer")
        return Score(value="C" if answer == target.text else "I", answer=answer)

    return score


samples = [
    Sample(
        input="Write the longest word into the file `answer`.", target=words[-1], files={"words.txt": "\n".join(words)}
    )
    for words in (["a", "bb", "ccc"], ["longer", "longest"], ["one", "three"])
]
task = Task(
    dataset=samples,
    solver=[use_tools(bash(timeout=30), python(timeout=30)), generate()],
    scorer=answer_file(),
    sandbox="nsbox",
)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as logs:
        (log,) = eval(task, model=get_model("mockllm/model", custom_outputs=script), display="none", log_dir=logs)
        print(log.status, log.results.scores[0].metrics["accuracy"].value)
        for sample in log.samples:
            print(sample.id, sample.scores["answer_file"].answer)
