// Functions of NVIDIA's libraries whose callers look at more than the status: handles that are not
// null, sizes that are something. All others that PyTorch imports do nothing and succeed (make.py).
// FAKE_LIBRARY is the name of one of them.
#include <stddef.h>
#include <stdint.h>

#define MAKES_A_HANDLE(name, ...)        \
  int name(void** made, ##__VA_ARGS__) { \
    *made = (void*)0x1000;               \
    return 0;                            \
  }
#define SAYS(name, type, value) \
  int name(type* said) {        \
    *said = value;              \
    return 0;                   \
  }
#define HAS_WORDS(name) \
  const char* name(int status) { return "a status of the fake library"; }

#ifdef FAKE_CUBLAS
MAKES_A_HANDLE(cublasCreate_v2)
HAS_WORDS(cublasGetStatusString)
int cublasGetMathMode(void* handle, int* mode) { return *mode = 0; }
int cublasGetPointerMode_v2(void* handle, int* mode) { return *mode = 0; }
int cublasGetStream_v2(void* handle, void** stream) {
  *stream = NULL;
  return 0;
}
#endif

#ifdef FAKE_CUBLASLT
MAKES_A_HANDLE(cublasLtCreate)
MAKES_A_HANDLE(cublasLtMatmulDescCreate, int compute, int scale)
MAKES_A_HANDLE(cublasLtMatrixLayoutCreate, int type, uint64_t rows, uint64_t columns, int64_t lead)
MAKES_A_HANDLE(cublasLtMatmulPreferenceCreate)
struct heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* op, void* a, void* b, void* c, void* d,
                                   void* preference, int wanted, struct heuristic* results,
                                   int* found) {
  results[0] = (struct heuristic){.waves = 1};
  *found = 1;
  return 0;
}
#endif

#ifdef FAKE_CUDNN
size_t cudnnGetVersion(void) { return 91900; }
size_t cudnnGetCudartVersion(void) { return 13000; }
MAKES_A_HANDLE(cudnnCreate)
HAS_WORDS(cudnnGetErrorString)
#endif

#ifdef FAKE_CUSPARSE
MAKES_A_HANDLE(cusparseCreate)
HAS_WORDS(cusparseGetErrorString)
HAS_WORDS(cusparseGetErrorName)
#endif

#ifdef FAKE_CUSOLVER
MAKES_A_HANDLE(cusolverDnCreate)
#endif

#ifdef FAKE_NVRTC
HAS_WORDS(nvrtcGetErrorString)
int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  return *minor = 0;
}
#endif

#ifdef FAKE_CUPTI
SAYS(cuptiGetVersion, uint32_t, 28)
#endif
