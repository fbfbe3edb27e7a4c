/* Classifies an image file on a GPU, without copies between the GPU and the engine: the image and the logits lie in the GPU's
 * memory, on a stream of this program. Prints the logits of a call, and then those of a recorded graph.
 *
 *   cc -I bindings/c/include -I $CUDA_HOME/include bindings/c/examples/on_gpu.c -L DIR -lswinq -L $CUDA_HOME/lib64 -lcudart -o on_gpu
 *   ./on_gpu swin_t.int8.safetensors cat.jpg
 */

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>
#include <swinq.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, swinq_last_error());
    return 1;
}

static int failed_in_cuda(const char *what, cudaError_t error)
{
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    return 1;
}

/* The preprocessed pixels of an image file; NULL if it cannot be read. */
static uint8_t *pixels_of(const swinq_model *model, const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = NULL, *pixels = malloc(size);
    long end = 0;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) > 0 && fseek(file, 0, SEEK_SET) == 0)
        bytes = malloc((size_t)end);
    if (bytes == NULL || pixels == NULL || fread(bytes, 1, (size_t)end, file) != (size_t)end ||
        swinq_decode(model, bytes, (size_t)end, pixels, size) != SWINQ_STATUS_OK) {
        free(pixels);
        pixels = NULL;
    }
    if (file != NULL)
        fclose(file);
    free(bytes);
    return pixels;
}

/* Waits for the stream, asks the engine whether all values were finite, and prints the logits. */
static int print(const swinq_engine *engine, cudaStream_t stream, const float *logits, size_t classes)
{
    float *host = malloc(classes * sizeof *host);
    cudaError_t error = cudaErrorMemoryAllocation;
    int result = 0;
    if (host != NULL)
        error = cudaMemcpyAsync(host, logits, classes * sizeof *host, cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess)
        result = failed_in_cuda("cudaMemcpyAsync", error);
    else if (swinq_engine_check(engine) != SWINQ_STATUS_OK)
        result = failed("swinq_engine_check");
    for (size_t i = 0; i < classes && result == 0; i++)
        printf("%.9g%c", (double)host[i], i + 1 < classes ? ' ' : '\n');
    free(host);
    return result;
}

/* Records a run as a graph, and launches it. */
static int run_as_graph(const swinq_engine *engine, const swinq_tensor *input, const swinq_tensor *output, cudaStream_t stream)
{
    swinq_run_options options = {.size = sizeof options, .stream = stream};
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    int result = 0;
    if (error != cudaSuccess)
        return failed_in_cuda("cudaStreamBeginCapture", error);
    if (swinq_engine_run(engine, input, 1, output, 1, &options) != SWINQ_STATUS_OK)
        result = failed("swinq_engine_run in a graph");
    error = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess && result == 0)
        error = cudaGraphInstantiate(&exec, graph, 0);
    if (error == cudaSuccess && result == 0)
        error = cudaGraphLaunch(exec, stream);
    if (error == cudaSuccess && result == 0)
        error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess && result == 0)
        result = failed_in_cuda("the graph", error);
    if (exec != NULL)
        cudaGraphExecDestroy(exec);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    return result;
}

static int classify(const swinq_engine *engine, const swinq_model_info *info, const uint8_t *pixels)
{
    size_t size = info->height * info->width * info->channels;
    cudaStream_t stream = NULL;
    void *image = NULL, *logits = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    int result = 0;
    if (error == cudaSuccess)
        error = cudaMalloc(&image, size);
    if (error == cudaSuccess)
        error = cudaMalloc(&logits, info->classes * sizeof(float));
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(image, pixels, size, cudaMemcpyHostToDevice, stream);
    if (error != cudaSuccess)
        result = failed_in_cuda("memory of the GPU", error);
    swinq_tensor input = {
        .size = sizeof input,
        .data = image,
        .type = SWINQ_TYPE_U8,
        .layout = SWINQ_LAYOUT_NHWC,
        .rank = 4,
        .shape = {1, info->height, info->width, info->channels},
        .device_type = SWINQ_DEVICE_CUDA,
    };
    swinq_tensor output = {
        .size = sizeof output,
        .data = logits,
        .type = SWINQ_TYPE_F32,
        .layout = SWINQ_LAYOUT_ROWS,
        .rank = 2,
        .shape = {1, info->classes},
        .device_type = SWINQ_DEVICE_CUDA,
    };
    swinq_run_options options = {.size = sizeof options, .stream = stream};
    if (result == 0 && swinq_engine_run(engine, &input, 1, &output, 1, &options) != SWINQ_STATUS_OK)
        result = failed("swinq_engine_run");
    if (result == 0)
        result = print(engine, stream, logits, info->classes);
    if (result == 0)
        result = run_as_graph(engine, &input, &output, stream);
    if (result == 0)
        result = print(engine, stream, logits, info->classes);
    cudaFree(logits);
    cudaFree(image);
    if (stream != NULL)
        cudaStreamDestroy(stream);
    return result;
}

int main(int argc, char **argv)
{
    swinq_model *model = NULL;
    swinq_engine *engine = NULL;
    swinq_model_info info = {.size = sizeof info};
    swinq_engine_options options = {.size = sizeof options, .backend = SWINQ_BACKEND_CUDA, .max_batch = 1};
    uint8_t *pixels = NULL;
    int result = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: on_gpu MODEL IMAGE\n");
        return 2;
    }
    if (swinq_model_open(argv[1], NULL, &model) != SWINQ_STATUS_OK)
        result = failed("swinq_model_open");
    else if (swinq_model_get_info(model, &info) != SWINQ_STATUS_OK)
        result = failed("swinq_model_get_info");
    else if (swinq_engine_new(model, &options, &engine) != SWINQ_STATUS_OK)
        result = failed("swinq_engine_new");
    else if ((pixels = pixels_of(model, argv[2], info.height * info.width * info.channels)) == NULL)
        result = failed(argv[2]);
    else
        result = classify(engine, &info, pixels);
    free(pixels);
    swinq_engine_free(engine);
    swinq_model_free(model);
    return result;
}
