// XXH3 with the widest vectors of the CPU, twice as fast as SSE2. Only for the two files that
// compute slice digests.
//
// ScopedVzeroupper: clears the upper halves of the vector registers at the end of a scope. Put one
// around each call that hashes: Debian's libxxhash leaves values in the upper halves. Until they
// are cleared, AVX-512 CPUs run code that mixes SSE and AVX, such as a call of std::fma, fifty
// times slower on that thread (Intel's optimization manual, "Mixing AVX code with SSE code").
// Thread safety: none.
#ifndef HEARTH_PROTO_XXH3_H_
#define HEARTH_PROTO_XXH3_H_

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

namespace hearth {

class ScopedVzeroupper {
 public:
  ScopedVzeroupper() {}  // user-provided, so that compilers do not warn about an unused variable
  ~ScopedVzeroupper() {
#if defined(__x86_64__)
    static const bool has_avx = __builtin_cpu_supports("avx") != 0;
    if (!has_avx) return;
    asm volatile("vzeroupper" ::
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#endif
  }
  ScopedVzeroupper(const ScopedVzeroupper&) = delete;
  ScopedVzeroupper& operator=(const ScopedVzeroupper&) = delete;
};

}  // namespace hearth

#endif  // HEARTH_PROTO_XXH3_H_
