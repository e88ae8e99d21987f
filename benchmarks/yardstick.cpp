// Softmax means in d = 3 by hand-written loops: what a compiler can do on this machine.
// Built with -O3 -march=native -ffast-math -fopenmp; the loops of exponentials use libmvec.

#include <cmath>
#include <vector>

namespace {
constexpr int TILE = 512;  // keys in columns and their exponentials stay in the first-level cache

// Keys as columns; four queries go over a tile of keys while it is in cache.
void three(const double* q, const double* y, const double* w, double* out, long m, long n) {
    std::vector<double> columns(4 * n);
    double *a = columns.data(), *b = a + n, *c = b + n, *v = c + n;
    for (long j = 0; j < n; ++j) {
        a[j] = y[3 * j], b[j] = y[3 * j + 1], c[j] = y[3 * j + 2], v[j] = w[j];
    }
#pragma omp parallel for schedule(dynamic, 8)
    for (long group = 0; group < (m + 3) / 4; ++group) {
        alignas(64) double p[4][TILE];
        double sum[4][4] = {};
        const long first = 4 * group, count = m - first < 4 ? m - first : 4;
        for (long start = 0; start < n; start += TILE) {
            const int size = n - start < TILE ? static_cast<int>(n - start) : TILE;
            const double *ta = a + start, *tb = b + start, *tc = c + start, *tv = v + start;
            for (int i = 0; i < count; ++i) {
                const double* x = q + 3 * (first + i);
                const double x0 = x[0], x1 = x[1], x2 = x[2];
                const double bound = std::sqrt(x0 * x0 + x1 * x1 + x2 * x2);
                double* row = p[i];
#pragma omp simd
                for (int j = 0; j < size; ++j) {
                    row[j] = tv[j] * std::exp(x0 * ta[j] + x1 * tb[j] + x2 * tc[j] - bound);
                }
                double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
                for (int j = 0; j < size; ++j) {
                    s0 += row[j] * ta[j], s1 += row[j] * tb[j], s2 += row[j] * tc[j], s3 += row[j];
                }
                sum[i][0] += s0, sum[i][1] += s1, sum[i][2] += s2, sum[i][3] += s3;
            }
        }
        for (int i = 0; i < count; ++i) {
            for (int k = 0; k < 3; ++k) out[3 * (first + i) + k] = sum[i][k] / sum[i][3];
        }
    }
}
}  // namespace

extern "C" void softmax_means3(const double* q, const double* y, const double* w, double* out, long m, long n) {
    three(q, y, w, out, m, n);
}
