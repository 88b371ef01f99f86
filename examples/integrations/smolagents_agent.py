"""A CodeAgent of smolagents whose code runs in a sandbox. The model is a script, so it needs no key.

pip install "nsbox[smolagents]"
python -P examples/integrations/smolagents_agent.py
"""

from smolagents import CodeAgent, tool
from smolagents.models import ChatMessage, MessageRole, Model

from nsbox.integrations.smolagents import NsboxExecutor

STEPS = [
    "degrees = {city: temperature(city) for city in ['Paris', 'Rome', 'Oslo']}\nprint(degrees)",
    "import os\nos.system('rm -rf ~')",  # it isn't authorized; and if it were, it would harm nobody
    "best = max(degrees, key=degrees.get)\nfinal_answer(f'The warmest is {best}, with {degrees[best]} degrees.')",
]


class Script(Model):
    """A model whose answers are the steps above."""

    def __init__(self) -> None:
        super().__init__(model_id="script")
        self.steps = iter(STEPS)

    def generate(self, messages, **options) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: next.\n<code>\n{next(self.steps)}\n</code>")


@tool
def temperature(city: str) -> int:
    """Tell how warm it is, in degrees. This runs outside of the sandbox, as all tools do.

    Args:
        city: Where.
    """
    return {"Paris": 24, "Rome": 31, "Oslo": 12}[city]


if __name__ == "__main__":
    with NsboxExecutor() as executor:
        agent = CodeAgent(tools=[temperature], model=Script(), executor=executor, verbosity_level=0)
        print(agent.run("Where is it warmest?"))
