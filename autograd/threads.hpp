// How many threads Regard uses on the CPU, and what it computes with.
#pragma once

#include <string>

namespace regard {

/// Sets how many threads Regard's CPU work uses, from now on and for the whole process. `count` is at least 1
/// (else ValueError). Results do not depend on it: work is split by shape alone, so every count gives the same
/// bits. It takes precedence over the environment; BLIS's and OpenMP's own thread variables have no effect.
void set_num_threads(int count);

/// The number of threads in use. At first: the environment variable REGARD_NUM_THREADS where it holds a whole
/// number of at least 1, else the number of processors this process may run on (its affinity and its control
/// group's quota are heeded).
int num_threads();

/// One line for a program's log, such as `BLIS 0.9.0, kernels zen3, 2 threads`. Where matrix products run on BLIS's
/// generic kernels, which are several times slower than the processor allows, a second line warns of it and names
/// the environment variable BLIS_ARCH_TYPE, which selects others.
std::string cpu_report();

}  // namespace regard
