"""What parsers don't know of subcommands: paragraphs, exit statuses, examples. Tests run the examples' words."""

from __future__ import annotations

from nsbox._base.frozen import Frozen, frozen

PROGRAM = "run commands in sandboxes that this process makes itself"

_STATUSES = (
    ("N", "the command's own status; 128+N if signal N ended it"),
    ("2", "the options or the policy are wrong"),
    ("124", "the command took longer than --timeout"),
    ("125", "the sandbox can't be made"),
    ("126", "the program can't be executed"),
    ("127", "there is no such program in the sandbox"),
)


@frozen
class Prose(Frozen):
    """What a page says beside the options.

    examples: pairs of a command line and what it does.
    statuses: pairs of an exit status and what it means.
    paragraphs: one text each, about the whole.
    """

    examples: tuple[tuple[str, str], ...]
    statuses: tuple[tuple[str, str], ...] = ()
    paragraphs: tuple[str, ...] = ()


PROSE = {
    "": Prose(
        examples=(
            ("nsbox run -- npm test", "can write only to the current directory, and has no network"),
            ("nsbox run --allow-net api.example -- make", "can reach one host"),
            ("nsbox python -c 'print(6 * 7)'", "runs Python code"),
            ('nsbox doctor "Operation not permitted"', "says what an error means, and what helps here"),
        ),
        statuses=(("2", "the subcommand is missing or unknown"),),
    ),
    "run": Prose(
        paragraphs=(
            "By default the command can write to the current directory and to a /tmp of its own. It can read the "
            "system's directories. It has no network, and none of your environment's secrets. What it starts "
            "ends with it.",
            "The command's options follow its name. A -- before it is only needed if its name begins with a dash.",
            "A home directory, or one above it, is refused as the workspace, since it has your keys. If you mean it, "
            "name it once more: --write DIR.",
            "If the command fails and nsbox knows what may be the reason, it says so on standard error, with the "
            "option that would help. It judges by how the command ended and, on a terminal, by what was shown there.",
        ),
        examples=(
            ("nsbox run -- npm test", "runs the tests; they can change this directory and nothing else"),
            ("nsbox run -c 'make && ./a.out | head'", "runs a shell line"),
            ("nsbox run --allow-net '*.files.example' -- make fetch", "reaches the hosts that a pattern names"),
            ("nsbox run --deny .env --memory 2G --timeout 60 -- python3 x.py", "hides a file, and sets limits"),
            ("nsbox run --diff -- sed -i s/a/b/ notes.txt", "shows what would change; nothing does"),
            ("nsbox run -p nsbox.toml -- make", "reads the policy from a file"),
        ),
        statuses=_STATUSES,
    ),
    "shell": Prose(
        paragraphs=("Your shell is the one that SHELL names, if the sandbox has it; else bash or sh.",),
        examples=(
            ("nsbox shell", "starts a shell in this directory; what it starts ends with it"),
            ("nsbox shell --network host", "starts one with the host's network"),
            ("nsbox shell -- -c 'echo $HOME'", "passes arguments to the shell"),
        ),
        statuses=_STATUSES,
    ),
    "python": Prose(
        paragraphs=(
            "Without a file or -c, it shows a prompt; if stdin isn't a terminal, it runs the code on stdin. At the "
            "prompt, Ctrl-C interrupts the code, and Ctrl-D ends the prompt.",
        ),
        examples=(
            ("nsbox python", "shows a prompt"),
            ("nsbox python -c 'print(6 * 7)'", "runs code"),
            ("nsbox python --import numpy --timeout 10 solve.py in.txt", "imports numpy, then runs a file"),
            ("nsbox python --json -c '1 / 0'", "prints a record of the run, with the exception, as JSON"),
        ),
        statuses=_STATUSES,
    ),
    "mcp": Prose(
        paragraphs=(
            "It speaks on stdin and stdout. Clients start it: put one of these lines into a client's configuration.",
        ),
        examples=(
            ("nsbox mcp -w ~/project", "serves tools that work in one directory, without a network"),
            (
                "nsbox mcp -w ~/project --allow-net api.example --timeout 600",
                "lets calls reach one host, and last ten minutes",
            ),
        ),
        statuses=(("125", "the SDK is missing, or no sandbox can be made"),),
    ),
    "explain": Prose(
        paragraphs=("It has the policy options of `nsbox run`, and runs nothing.",),
        examples=(
            ("nsbox explain", "shows the policy of this directory, and what enforces each part"),
            ("nsbox explain -p nsbox.toml", "shows the policy of a file"),
            ("nsbox explain --host --backend landlock", "shows what is lost with another backend"),
        ),
        statuses=(("2", "the options or the policy are wrong"), ("125", "this machine can't grant the policy")),
    ),
    "init": Prose(
        examples=(
            ("nsbox init", "writes nsbox.toml, with every key in a comment"),
            ("nsbox init --format yaml -w ~/project", "writes nsbox.yaml, for another directory"),
        ),
        statuses=(("1", "the file exists, or it can't be written"),),
    ),
    "check": Prose(
        examples=(
            ("nsbox check nsbox.toml", "says what commands may read, write and reach"),
            ("nsbox check pyproject.toml --section tool.nsbox", "reads one table of a file"),
        ),
        statuses=(("1", "the file is wrong: each problem is a line on stderr"),),
    ),
    "schema": Prose(examples=(("nsbox schema", "prints it, for editors that complete and check such files"),)),
    "doctor": Prose(
        paragraphs=(
            "Without a symptom, it tries each part of a sandbox. With one, it names what is known to cause such an "
            "error, checks whether that is so on this machine, and says what helps.",
        ),
        examples=(
            ("nsbox doctor", "tries everything"),
            ("nsbox doctor --json", "prints JSON, for programs and bug reports"),
            ('nsbox doctor "Operation not permitted"', "explains an error's text"),
            ("nsbox doctor docker", "says what a place such as Docker needs"),
            ("nsbox doctor --list", "lists what it knows"),
        ),
        statuses=(
            ("0", "the default policy is enforced in full; or the symptom is known"),
            ("1", "it isn't; or nothing is known of the symptom"),
        ),
    ),
    "bench": Prose(
        paragraphs=("It compares nsbox with subprocess, and with bwrap if that is installed. It takes some minutes.",),
        examples=(
            ("nsbox bench --quick", "takes some seconds, and shows that it works"),
            ("nsbox bench --only spawn --only warm", "measures two parts"),
            ("nsbox bench --json figures.json --png figures.png", "writes the figures, and draws them"),
        ),
        statuses=(("2", "the options are wrong"),),
    ),
    "bwrap": Prose(
        paragraphs=(
            "It has bubblewrap's options, in its order and with its meanings, and needs no bwrap. "
            "`nsbox bwrap --help` prints their usage as bwrap does.",
        ),
        examples=(
            ("nsbox bwrap --ro-bind / / --unshare-all true", "runs a command as bwrap would"),
            ("nsbox bwrap --install ~/bin", "makes a program bwrap for others to call"),
            ("nsbox bwrap --completion bash", "prints completions for nsbox-bwrap and bwrap"),
        ),
        statuses=(("N", "the command's own status; 1 if bwrap would fail"),),
    ),
    "help": Prose(
        examples=(("nsbox help run", "shows the same as `nsbox run --help`"),),
    ),
    "man": Prose(
        paragraphs=("A page is text for man(1), on stdout.",),
        examples=(
            ("nsbox man run | man -l -", "reads one page"),
            ("nsbox man --write ~/.local/share/man/man1", "makes `man nsbox-run` find it"),
        ),
        statuses=(("2", "the directory can't be written to"),),
    ),
    "completion": Prose(
        examples=(
            ("source <(nsbox completion bash)", "completes in this shell; put it into ~/.bashrc"),
            ("nsbox completion zsh > ~/.zfunc/_nsbox", "for a directory that is in zsh's fpath before compinit"),
            ("nsbox completion fish > ~/.config/fish/completions/nsbox.fish", "for fish, which finds it there"),
        ),
    ),
}
