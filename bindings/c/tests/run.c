/* Prints the logits of images of a size: one line for each, with all digits.
 *
 *   run MODEL HEIGHT WIDTH IMAGES
 *
 * Byte `i` of the images is `i * 7919 % 251`. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <swinq.h>

static void check(swinq_status status)
{
    if (status == SWINQ_STATUS_OK)
        return;
    fprintf(stderr, "status %d: %s\n", (int)status, swinq_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    swinq_model *model;
    swinq_engine *engine;
    swinq_model_info info = {.size = sizeof info};
    swinq_engine_options options = {.size = sizeof options, .backend = SWINQ_BACKEND_CPU, .max_batch = 2};
    swinq_tensor input = {.size = sizeof input, .type = SWINQ_TYPE_U8, .layout = SWINQ_LAYOUT_NHWC, .rank = 4};
    swinq_tensor output = {.size = sizeof output};
    size_t count, length = 1, values = 1;
    uint8_t *pixels;
    float *logits, *again;
    if (argc != 5)
        return 2;
    check(swinq_model_open(argv[1], NULL, &model));
    check(swinq_model_get_info(model, &info));
    check(swinq_engine_new(model, &options, &engine));
    check(swinq_model_free(model));
    check(swinq_engine_get_output_count(engine, &count));
    input.shape[0] = strtoul(argv[4], NULL, 10);
    input.shape[1] = strtoul(argv[2], NULL, 10);
    input.shape[2] = strtoul(argv[3], NULL, 10);
    input.shape[3] = info.channels;
    for (size_t i = 0; i < input.rank; i++)
        length *= input.shape[i];
    input.data = pixels = malloc(length);
    for (size_t i = 0; i < length; i++)
        pixels[i] = (uint8_t)(i * 7919 % 251);

    check(swinq_engine_get_output(engine, count - 1, input.shape[1], input.shape[2], &output));
    output.shape[0] = input.shape[0];
    for (size_t i = 0; i < output.rank; i++)
        values *= output.shape[i];
    output.data = logits = malloc(values * sizeof *logits);
    check(swinq_engine_run(engine, &input, 1, &output, 1, NULL));
    /* The only input and output need no names. */
    output.data = again = malloc(values * sizeof *again);
    output.name = NULL;
    input.name = "pixels";
    check(swinq_engine_run(engine, &input, 1, &output, 1, NULL));
    if (memcmp(logits, again, values * sizeof *logits) != 0) {
        fprintf(stderr, "another call gives other logits\n");
        return 1;
    }
    for (size_t i = 0; i < values; i++)
        printf("%.9g%c", (double)logits[i], (i + 1) % output.shape[1] == 0 ? '\n' : ' ');
    check(swinq_engine_free(engine));
    free(pixels);
    free(logits);
    free(again);
    return 0;
}
