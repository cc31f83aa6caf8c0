/* SPDX-License-Identifier: MIT */
/*
 * Completion for bash, zsh and fish, from the tables of options: commands, options, their choices, the classes of the model on
 * the line, devices; files where a file is meant and nowhere else. What the shells cannot know, they ask
 * `nalagen completion classes MODEL` and `nalagen completion devices`.
 */
#include "nl_help.h"

#include <string.h>
#include <unistd.h>

#include "nl_pipeline.h"

/* ---- What the scripts ask */

void nl_print_classes(FILE *stream, const char *model)
{
    nl_context *context;
    nl_checkpoint *checkpoint = NULL;
    nl_config config = {0};
    char *own = NULL;
    if (nl_core_context_create(NULL, &context) != NL_OK)
        return;
    if (!model && nl_find_data(context, NULL, nl_shipped_model, &own) == NL_OK)
        model = own;
    if (model && nl_open_backbone(context, model, NULL, &checkpoint) == NL_OK &&
        nl_read_config(checkpoint, &(nl_model_options){.path = model}, &config) == NL_OK)
        for (int i = 0; config.class_names && i < config.num_classes; i++) {
            const nl_class_name *class = &config.class_names[i];
            const char *name = class->name ? class->name : class->wnid;
            int length = name ? (int)strcspn(name, ",\n") : 0; /* synonyms are as good */
            if (length)
                fprintf(stream, "%.*s\n", length, name);
        }
    fputs("random\nbalanced\nnull\n", stream);
    nl_config_free(context, &config);
    nl_checkpoint_close(checkpoint);
    nl_free(context, own);
    nl_core_context_destroy(context);
}

void nl_print_devices(FILE *stream)
{
    char path[32];
    fputs("auto\ncpu\n", stream);
    for (int i = 0; i < 64; i++) {
        snprintf(path, sizeof(path), "/dev/nvidia%d", i);
        if (access(path, F_OK) == 0)
            fprintf(stream, i ? "cuda:%d\n" : "cuda\ncuda:%d\n", i);
    }
}

/* ---- Scripts */

static bool takes_value(const nl_option *option)
{
    return option->argument && !(option->where & NL_OPTIONAL_VALUE);
}

static void print_choices(FILE *stream, const nl_option *option, const char *between)
{
    for (int i = 0; option->choices[i]; i++)
        fprintf(stream, "%s%s", i ? between : "", option->choices[i]);
}

/* Single quotes, brackets and colons mean something inside zsh's and fish's '...' specifications. */
static void quoted(FILE *stream, const char *text, const char *escape)
{
    for (; *text && *text != '\n'; text++) {
        if (*text == '\'')
            fputs("'\\'", stream);
        else if (strchr(escape, *text))
            fputc('\\', stream);
        fputc(*text, stream);
    }
}

/* Words are put together again that bash takes apart at = and :, and what it would put in front is taken off. Files are left
 * to readline (compopt -o default), which knows names with blanks. */
static const char bash_start[] =
    "# bash completion of nalagen\n"
    "# Words of the list in $1, a line each, that continue $cur behind its last comma.\n"
    "_nalagen_list()\n{\n"
    "    local head= last=$cur line\n"
    "    [[ $cur == *,* ]] && head=${cur%,*}, last=${cur##*,}\n"
    "    while IFS= read -r line; do\n"
    "        [[ $line == \"$last\"* ]] && COMPREPLY+=(\"$head$line\")\n"
    "    done <<<\"$1\"\n"
    "    compopt -o filenames -o nospace 2>/dev/null # blanks are quoted\n"
    "}\n"
    "_nalagen_files()\n{\n    compopt -o default 2>/dev/null\n}\n"
    "# Without what readline keeps: all to the last : or = of the word.\n"
    "_nalagen_cut()\n{\n"
    "    local i kept=${word%\"${word##*[:=]}\"}\n"
    "    kept=${kept#\"$option\"}\n"
    "    for i in \"${!COMPREPLY[@]}\"; do COMPREPLY[i]=${COMPREPLY[i]#\"$kept\"}; done\n"
    "}\n"
    "_nalagen()\n{\n"
    "    local i word= prev= glued= cur option= options= model= count=0\n"
    "    for ((i = 1; i <= COMP_CWORD; i++)); do\n"
    "        if [[ ${COMP_WORDS[i]} == [:=]* && $count -gt 0 ]] || [[ $glued ]]; then\n"
    "            word+=${COMP_WORDS[i]}\n"
    "        else\n"
    "            prev=$word word=${COMP_WORDS[i]} count=$((count + 1))\n"
    "        fi\n"
    "        [[ ${COMP_WORDS[i]} == [:=] ]] && glued=1 || glued=\n"
    "        [[ $prev == -m || $prev == --model ]] && model=$word\n"
    "        [[ $word == --model=* ]] && model=${word#--model=}\n"
    "    done\n"
    "    model=${model#[\\\"\\']} model=${model%[\\\"\\']} model=${model//\\\\/}\n"
    "    model=${model/#\\~\\//$HOME/}\n"
    "    word=${word#[\\\"\\']} word=${word//\\\\/}\n"
    "    cur=$word COMPREPLY=()\n"
    "    if [[ $word == --*=* ]]; then prev=${word%%=*} cur=${word#*=} option=$prev=; fi\n";

static void bash_command(FILE *stream, const nl_command *command)
{
    nl_option rows[NL_MOST_OPTIONS];
    fprintf(stream, "    %s)\n        case $prev in\n", command->name);
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++) {
        char letter[8] = "";
        if (o->letter)
            snprintf(letter, sizeof(letter), "|-%c", o->letter);
        if (!takes_value(o))
            continue;
        fprintf(stream, "        --%s%s) ", o->name, letter);
        if (o->completes)
            fprintf(stream,
                    "_nalagen_list \"$(\"$1\" completion %s%s 2>/dev/null)\"; _nalagen_cut; ",
                    o->completes, strcmp(o->completes, "classes") ? "" : " \"$model\"");
        else if (o->kind == NL_OPTION_CHOICE) {
            fputs("COMPREPLY=($(compgen -W \"", stream);
            print_choices(stream, o, " ");
            fputs("\" -- \"$cur\")); ", stream);
        } else if (o->kind == NL_OPTION_FILE) {
            fputs("_nalagen_files; ", stream);
        }
        fputs("return ;;\n", stream);
    }
    fputs("        esac\n        options=\"", stream);
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++)
        fprintf(stream, "%s--%s", o == rows ? "" : " ", o->name);
    fprintf(stream, "\"\n        [[ $cur == -* ]] || %s ;;\n",
            command->most > 0 ? "_nalagen_files" : "return");
}

static void bash(FILE *stream, const nl_command *commands)
{
    fputs(bash_start, stream);
    fputs("    if [ \"$count\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W \"", stream);
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden)
            fprintf(stream, "%s%s", c == commands ? "" : " ", c->name);
    fputs("\" -- \"$cur\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n", stream);
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden)
            bash_command(stream, c);
    fputs(
        "    esac\n    [[ $cur == -* ]] && COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n}\n"
        "complete -F _nalagen nalagen\n",
        stream);
}

static void zsh_option(FILE *stream, const nl_option *o)
{
    const char *sign = o->where & NL_OPTIONAL_VALUE ? "=-" : o->argument ? "=" : "";
    if (o->letter)
        fprintf(stream, "        '(-%c --%s)'{-%c%s,--%s%s}'[", o->letter, o->name, o->letter,
                o->argument ? "+" : "", o->name, sign);
    else
        fprintf(stream, "        '--%s%s[", o->name, sign);
    quoted(stream, o->help, "[]:");
    fputc(']', stream);
    if (o->argument) {
        fputs(o->where & NL_OPTIONAL_VALUE ? "::" : ":", stream);
        quoted(stream, o->argument, "[]:");
        fputc(':', stream);
        if (o->completes) {
            fprintf(stream, "{_nalagen_list %s}", o->completes);
        } else if (o->kind == NL_OPTION_CHOICE) {
            fputc('(', stream);
            print_choices(stream, o, " ");
            fputc(')', stream);
        } else if (o->kind == NL_OPTION_FILE) {
            fputs("_files", stream);
        }
    }
    fputs("' \\\n", stream);
}

static const char zsh_start[] =
    "#compdef nalagen\n"
    "# The list of what $1 names, behind the last comma.\n"
    "_nalagen_list()\n{\n"
    "    local -a names model\n"
    "    local i\n"
    "    for ((i = 1; i < $#words; i++)); do\n"
    "        [[ $words[i] == (-m|--model) ]] && model=(${(Q)~words[i+1]})\n"
    "        [[ $words[i] == --model=* ]] && model=(${(Q)~words[i]#--model=})\n"
    "    done\n"
    "    [[ $1 == classes ]] || model=()\n"
    "    names=(${(f)\"$(nalagen completion $1 $model 2>/dev/null)\"})\n"
    "    compset -P '*,'\n"
    "    compadd -a names\n"
    "}\n"
    "_nalagen()\n{\n    if (( CURRENT == 2 )); then\n"
    "        local -a commands=(\n";

static void zsh(FILE *stream, const nl_command *commands)
{
    nl_option rows[NL_MOST_OPTIONS];
    fputs(zsh_start, stream);
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden) {
            fprintf(stream, "            '%s:", c->name);
            quoted(stream, c->summary, ":");
            fputs("'\n", stream);
        }
    fputs("        )\n        _describe command commands\n        return\n    fi\n"
          "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
          "    case $command in\n",
          stream);
    for (const nl_command *c = commands; c->name; c++) {
        if (c->hidden)
            continue;
        fprintf(stream, "    %s)\n        _arguments -S \\\n", c->name);
        for (const nl_option *o = nl_options_of(c, rows); o->name; o++)
            zsh_option(stream, o);
        fputs(c->most > 0 ? "        '*:file:_files' ;;\n" : "        ;;\n", stream);
    }
    fputs("    esac\n}\n_nalagen \"$@\"\n", stream);
}

static const char fish_start[] =
    "# fish completion of nalagen\n"
    "# The list of what the arguments name, behind the last comma of the word.\n"
    "function __nalagen_list\n"
    "    set -l head (string replace -r '[^,]*$' '' -- (commandline -ct | string replace -r "
    "'^--[a-z-]+=' ''))\n"
    "    set -l words (commandline -opc)\n"
    "    set -l model\n"
    "    for i in (seq (count $words))\n"
    "        switch $words[$i]\n"
    "            case -m --model\n"
    "                set model $words[(math $i + 1)]\n"
    "            case '--model=*'\n"
    "                set model (string replace -- --model= '' $words[$i])\n"
    "        end\n"
    "    end\n"
    "    test $argv[1] = classes; or set model\n"
    "    for name in (nalagen completion $argv $model 2>/dev/null)\n"
    "        printf '%s%s\\n' \"$head\" $name\n"
    "    end\n"
    "end\n"
    "complete -c nalagen -n __fish_use_subcommand -f\n";

static void fish_option(FILE *stream, const nl_command *command, const nl_option *o)
{
    fprintf(stream, "complete -c nalagen -n '__fish_seen_subcommand_from %s' -l %s", command->name,
            o->name);
    if (o->letter)
        fprintf(stream, " -s %c", o->letter);
    if (takes_value(o))
        fputs(o->kind == NL_OPTION_FILE ? " -r -F" : " -x", stream);
    if (o->completes) {
        fprintf(stream, " -a '(__nalagen_list %s)'", o->completes);
    } else if (o->kind == NL_OPTION_CHOICE) {
        fputs(" -a '", stream);
        print_choices(stream, o, " ");
        fputc('\'', stream);
    }
    fputs(" -d '", stream);
    quoted(stream, o->help, "\\");
    fputs("'\n", stream);
}

static void fish(FILE *stream, const nl_command *commands)
{
    nl_option rows[NL_MOST_OPTIONS];
    fputs(fish_start, stream);
    for (const nl_command *c = commands; c->name; c++) {
        if (c->hidden)
            continue;
        fprintf(stream, "complete -c nalagen -n __fish_use_subcommand -f -a %s -d '", c->name);
        quoted(stream, c->summary, "\\");
        fputs("'\n", stream);
        if (c->most == 0)
            fprintf(stream, "complete -c nalagen -n '__fish_seen_subcommand_from %s' -f\n",
                    c->name);
        for (const nl_option *o = nl_options_of(c, rows); o->name; o++)
            fish_option(stream, c, o);
    }
}

bool nl_print_completion(FILE *stream, const char *shell, const nl_command *commands)
{
    if (!strcmp(shell, "bash"))
        bash(stream, commands);
    else if (!strcmp(shell, "zsh"))
        zsh(stream, commands);
    else if (!strcmp(shell, "fish"))
        fish(stream, commands);
    else
        return false;
    return true;
}
