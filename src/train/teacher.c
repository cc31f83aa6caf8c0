/* SPDX-License-Identifier: MIT */
/* The teacher of a distillation: loaded, and held against the student that is to learn from it. */
#include "trainer.h"

/* What a student of another network may have otherwise. */
static void take_network(const nl_config *from, nl_config *to)
{
    to->attention = from->attention;
    to->mlp = from->mlp;
    to->norm = from->norm;
    to->qk_norm = from->qk_norm;
    to->qk_norm_layer = from->qk_norm_layer;
    to->feature_map = from->feature_map;
    to->lambda = from->lambda;
    to->tau = from->tau;
    to->learn_exponents = from->learn_exponents;
    to->query_norm = from->query_norm;
    to->gate = from->gate;
    to->lepe = from->lepe;
    to->rope = from->rope;
    to->dw_conv = from->dw_conv;
    to->mediators = from->mediators;
    to->depth = from->depth;
    to->hidden_size = from->hidden_size;
    to->num_heads = from->num_heads;
    to->patch_size = from->patch_size;
    to->of_diffusers = from->of_diffusers;
}

/* What is minded of the teacher by itself. */
static nl_status check_alone(nl_trainer *trainer, const nl_checkpoint *checkpoint,
                             const nl_config *teacher)
{
    nl_context *context = trainer->context;
    const nl_train_options *options = trainer->options;
    if (teacher->one_step == NL_ONE_STEP_ALONE)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: makes pictures in one step and knows no velocities to learn from",
                       checkpoint->path);
    if (teacher->flow_map && !options->one_step)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: is a flow map itself: the teacher is a network of one time",
                       checkpoint->path);
    if (!nl_converts(options))
        NL_CHECK(nl_trainer_check_flow_map(context, checkpoint->path, teacher));
    bool guides =
        (options->guidance != 1 && !nl_converts(options)) ||
        (options->match > 0 && options->match_guidance > 0 && options->match_guidance != 1);
    if (guides && (teacher->guided || !teacher->num_classes || !nl_config_learnt_null(teacher)))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: cannot be guided (%s): distil it with --teacher-cfg 1%s",
                       checkpoint->path,
                       teacher->guided         ? "guidance is inside its weights"
                       : !teacher->num_classes ? "it has no classes"
                                               : "it was trained without dropped labels",
                       options->match > 0 ? " and without --match-cfg" : "");
    if (nl_guides_inside(options->internal_guidance) && !teacher->middle_head)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: has no middle head to guide it: leave out --teacher-internal",
                       checkpoint->path);
    return NL_OK;
}

/* Against the student. */
static nl_status check(nl_trainer *trainer, const nl_checkpoint *checkpoint,
                       const nl_config *teacher)
{
    nl_context *context = trainer->context;
    nl_config student = trainer->config;
    student.flow_map = teacher->flow_map;
    student.one_step = teacher->one_step;
    student.guided = teacher->guided;
    student.middle_head = teacher->middle_head;
    student.internal_guidance = teacher->internal_guidance;
    student.crop_conditioning = teacher->crop_conditioning; /* asked for the whole picture */
    nl_config other = *teacher;
    if (trainer->options->student_config)
        take_network(&student, &other);
    const char *key = nl_config_difference(&other, &student);
    if (key)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "%s: teacher and student, which follows from it and from %s, differ in \"%s\"",
            checkpoint->path, trainer->options->data, key);
    int number = nl_config_other_class(teacher, &student);
    if (number >= 0)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: class %d has another name than in %s: the teacher would be asked for "
                       "the wrong pictures",
                       checkpoint->path, number, trainer->options->data);
    return NL_OK;
}

nl_status nl_trainer_check_teacher(nl_trainer *trainer, const nl_checkpoint *checkpoint)
{
    nl_config config;
    nl_status status = nl_config_from_checkpoint(checkpoint, NULL, &config);
    if (status == NL_OK)
        status = check_alone(trainer, checkpoint, &config);
    nl_config_free(trainer->context, &config);
    return status;
}

nl_status nl_trainer_take_teacher(nl_trainer *trainer, const nl_checkpoint *checkpoint)
{
    nl_status status = NL_OK;
    nl_config config;
    NL_TRY(nl_config_from_checkpoint(checkpoint, NULL, &config));
    NL_TRY(check(trainer, checkpoint, &config));
    trainer->config.guided |= config.guided; /* what it teaches has guidance inside */
    NL_TRY(nl_dit_create(trainer->device, &config, &trainer->teacher));
    NL_TRY(nl_dit_load(trainer->teacher, checkpoint));
    NL_TRY(nl_checkpoint_sha256(checkpoint, trainer->point.teacher_sha256));
cleanup:
    nl_config_free(trainer->context, &config);
    return status;
}
