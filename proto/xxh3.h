// XXH3 in the widest vectors that the CPU has: twice as fast as SSE2's. For the two files that
// compute slice digests.
//
// ScopedVzeroupper: leaves the vector registers as other code expects them. Debian's libxxhash ends
// with values in their upper halves; until something clears these, an AVX-512 CPU runs code that
// mixes SSE with AVX, a call of std::fma for one, fifty times slower on that thread (Intel's
// optimization manual, "Mixing AVX code with SSE code"). Around each call that hashes. Thread
// safety: none.
#ifndef HEARTH_PROTO_XXH3_H_
#define HEARTH_PROTO_XXH3_H_

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

namespace hearth {

class ScopedVzeroupper {
 public:
  ScopedVzeroupper() {}  // not defaulted: a variable of it is not unused
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
