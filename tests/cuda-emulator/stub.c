/* What a toolkit puts in place of a driver to link against: it loads, and has none of what a program needs. */
int cuInit(unsigned flags) {
    (void)flags;
    return 34; /* CUDA_ERROR_STUB_LIBRARY */
}

int cuDriverGetVersion(int *version) {
    (void)version;
    return 34;
}
