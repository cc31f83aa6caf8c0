#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Types a line and Tab into an interactive shell, and prints what became of it.

    python3 tests/shell_keys.py bash|zsh SCRIPT LINE [words|list]

SCRIPT: the completion. words: the words of the line after Tab, one a line; list: what was offered, one a line, sorted.
"""
import os
import pty
import re
import select
import sys
import time

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
SETUP = {
    "bash": "PS1='>'; bind 'set enable-bracketed-paste off' 'set show-all-if-ambiguous on' 'set page-completions off' "
            "'set completion-query-items 0'; bind 'set show-all-if-ambiguous on'; bind 'set completion-query-items 0'; "
            "bind 'set enable-bracketed-paste off'; source {script}",
    "zsh": "unset zle_bracketed_paste; PS1='>'; unsetopt zle_bracketed_paste prompt_sp 2>/dev/null; fpath=({folder} $fpath); "
           "autoload -U compinit; compinit -u -D; bindkey -e; LISTMAX=999; compdef _nalagen nalagen",
}


def read(terminal, until=None, quiet=20, most=20):
    """What comes until that is there, or until it has been quiet for a while."""
    text, plain, end = b"", "", time.time() + most
    while time.time() < end and select.select([terminal], [], [], quiet)[0]:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r", "", text.decode(errors="replace"))
        if until and re.search(until, plain, re.M):
            break
    return plain


def main():
    shell, script, line = sys.argv[1:4]
    what = sys.argv[4] if len(sys.argv) > 4 else "words"
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="dumb", COLUMNS="200", LINES="200", HISTFILE="/dev/null")
        os.execvp(shell, START[shell])
    read(terminal, r"[#$%>] *$", quiet=2)
    setup = SETUP[shell].format(script=script, folder=os.path.dirname(os.path.abspath(script)))
    os.write(terminal, (setup + "; printf 're%s\\n' ady\n").encode())
    read(terminal, r"^ready$")
    os.write(terminal, (line + "\t").encode())
    if what == "list":
        rest = read(terminal, quiet=1.5).split("\n")[1:]
        print("\n".join(sorted(word for row in rest if not row.startswith(">") for word in re.split(r"\s{2,}|\t", row.strip()) if word)))
    else:
        os.write(terminal, b"\x01printf '<%s>\\n' \nprintf 'en%s\\n' ded\n")
        print("\n".join(re.findall(r"^<(.*)>$", read(terminal, r"^ended$"), re.M)))
    os.write(terminal, b"\x03\x15exit\n")
    os.close(terminal)
    os.waitpid(process, 0)


main()
