// The kernels of fault_jobs.py. WITH_MAIN: a program that runs the one that writes out of bounds.
extern "C" __global__ void write_far(float* x, long long where) { x[where] = 1.0f; }

extern "C" __global__ void write_skewed(char* x, int offset) { *(volatile int*)(x + offset) = 1; }

extern "C" __global__ void endless(volatile int* stop) {
    while (*stop == 0) __nanosleep(1000);
}

extern "C" __device__ __noinline__ int deep(int n, volatile int* p) {
    volatile int kept[256];
    kept[n % 256] = p[0];
    if (n == 0) return kept[0];
    return deep(n - 1, p) + kept[(n + 1) % 256];
}

extern "C" __global__ void recurse(int* x, int n) { x[0] = deep(n, x); }

// 255 registers a thread: 1,024 threads of a block have 64 each.
extern "C" __global__ void greedy(float* x, int n) {
    float a[200];
#pragma unroll
    for (int i = 0; i < 200; i++) a[i] = x[i * n + threadIdx.x];
    for (int k = 0; k < n; k++) {
#pragma unroll
        for (int i = 0; i < 200; i++) a[i] = a[i] * a[(i + 7) % 200] + x[k];
    }
#pragma unroll
    for (int i = 0; i < 200; i++) x[i * n + threadIdx.x] = a[i];
}

#ifdef WITH_MAIN
#include <cstdio>
int main() {
    float* x = nullptr;
    cudaMalloc(&x, 1024);
    write_far<<<1, 32>>>(x, 256);  // just behind the end: the sanitizer says how far
    cudaError_t error = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}
#endif
