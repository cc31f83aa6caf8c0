/* SPDX-License-Identifier: MIT */
/* The distill command: training towards a teacher, with the options of train and some of its own. */
#include "nl_training.h"

#define TRAIN(member) offsetof(nl_train_values, train.member)

enum { RECORD = NL_IN_REQUEST };

static const nl_option options[] = {
    {"teacher", 0, NL_OPTION_FILE, TRAIN(teacher), "FILE", .where = NL_COMMON | RECORD,
     .group = "Teacher", .help = "a SiT of velocities; the student starts as it",
     .detail = "A network of one time on the linear path, of the data's classes and autoencoder."},
    {"teacher-cfg", 0, NL_OPTION_REAL, TRAIN(guidance), "X", 0, 100, .where = NL_COMMON | RECORD,
     .help = "its guidance, from then on inside the weights (3)"},
    {"teacher-interval", 0, NL_OPTION_INTERVAL, TRAIN(guidance_interval), "A,B", 0, 1,
     .where = RECORD, .help = "guide where A <= t <= B alone (0.1,0.9)"},
    {"teacher-internal", 0, NL_OPTION_REAL, TRAIN(internal_guidance), "W", 0, 1000, .where = RECORD,
     .help = "its internal guidance, likewise (of a middle head)",
     .detail = "The student keeps the middle head and predicts by that scale itself."},
    {"teacher-samples", 0, NL_OPTION_INT, TRAIN(teacher_samples), "N", 1, 1e9, .where = RECORD,
     .help = "of its own, to learn from without --data (30720)"},
    {"student-config", 0, NL_OPTION_FILE, TRAIN(student_config), "FILE", .where = RECORD,
     .help = "another network: JSON over the teacher's",
     .detail = "FILE, or '{\"attention\": \"nala\", \"lepe\": true}'. The student inherits what "
               "fits and learns "
               "the teacher's predictions on --data; without --flow-map it is an ordinary model."},
    {"flow-map", 0, NL_OPTION_INT, TRAIN(flow_map), "N", 1, 1024, .where = RECORD,
     .help = "blocks that see a step's start, not its end (2/3)"},
    {"alpha-floor", 0, NL_OPTION_REAL, TRAIN(alpha_floor), "X", 0.001, 1, .where = RECORD,
     .help = "least part of the teacher in a target (0.02)"},
    {"adaptive", 0, NL_OPTION_REAL, TRAIN(adaptive), "X", 1e-9, 1e9, .where = RECORD,
     .help = "gradients are divided by sqrt(error + X) (1e-3)"},
    {"match", 0, NL_OPTION_REAL, TRAIN(match), "W", 0, 1e6, .where = RECORD,
     .group = "Distribution matching", .help = "weight of what sharpens one and two steps (0)",
     .detail =
         "The student's pictures of one jump, and of the last of two, move to where the teacher "
         "would have them rather than a network that learns what they are (the fake)."},
    {"match-from", 0, NL_OPTION_REAL, TRAIN(match_from), "X", 0, 0.99, .where = RECORD,
     .help = "part of the run that lies before it (0.5)",
     .detail = "For the first tenth of the rest the fake alone learns."},
    {"match-cfg", 0, NL_OPTION_REAL, TRAIN(match_guidance), "X", 0, 100, .where = RECORD,
     .help = "the teacher's guidance scale in it (--teacher-cfg)"},
    {"fake-lr", 0, NL_OPTION_REAL, TRAIN(fake_rate), "X", 0, 1e3, .where = RECORD,
     .help = "learning rate of the fake, scheduled as --lr (--lr)"},
    {"fake-updates", 0, NL_OPTION_INT, TRAIN(fake_updates), "N", 1, 100, .where = RECORD,
     .help = "of the fake, for each of the student's (3)"},
    {"adversarial", 0, NL_OPTION_REAL, TRAIN(adversarial), "W", 0, 1e6, .where = RECORD,
     .help = "weight of a discriminator's term beside it (0)",
     .detail = "The fake's middle head tells noisy samples of --data from the student's, which "
               "move to where it cannot. Needs --teacher-internal."},
    {"one-step", 0, NL_OPTION_FLAG, TRAIN(one_step), .where = RECORD,
     .help = "match one jump from noise to data, and nothing else",
     .detail = "The student makes pictures in one step alone. The teacher may be a flow map."},
    {.include = nl_train_rows},
    {0},
};

static nl_status distill_main(int argc, char **argv)
{
    nl_train_values values = {.command = &nl_distill_command, .train = nl_distill_defaults};
    return nl_train_with(argc, argv, &values);
}

const nl_command nl_distill_command = {
    .name = "distill",
    .summary = "Make a flow map of a SiT, or another network of a model",
    .arguments = "--teacher FILE --out RUN [OPTION...]",
    .notes = "The student learns the average velocity between any two times, by which a\n"
             "picture takes one to four evaluations of the network. A run resumes exactly, as\n"
             "with train. The end must be known: --steps, --epochs or --minutes. Without\n"
             "--data it learns from what the teacher draws first, in RUN/latents.\n"
             "With --student-config the student is an ordinary model of another network.\n",
    .examples = "  nalagen distill --teacher model.safetensors -o run --steps 12000 --batch 512\n"
                "  nalagen sample -m run/model.safetensors -c church --steps 2\n",
    .options = options,
    .run = distill_main,
};
