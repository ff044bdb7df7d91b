// Highway's choice of an instruction set, on x86: what its headers otherwise ask of its library. That library's
// benchmark part measures the resolution of the clock whenever it is loaded, 3 ms that each program would wait for at
// its start. Where the build says so (see CMakeLists.txt), Regard is not linked with it. Weak: a program that has
// Highway's library in it uses that one's.
#ifdef REGARD_OWN_HIGHWAY_TARGETS

#include <hwy/targets.h>

namespace hwy {

__attribute__((weak)) int64_t SupportedTargets() {
  static const int64_t targets = [] {
    int64_t found = HWY_STATIC_TARGET | HWY_EMU128 | HWY_SCALAR;
    __builtin_cpu_init();  // and asks whether the system keeps the registers
    // Processors with these have F16C and LZCNT, too.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
    if (avx2) found |= HWY_AVX2;
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd"))
      found |= HWY_AVX3;
    return found;
  }();
  return targets;
}

__attribute__((weak)) ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy

#endif
