// XXH3 in the widest vectors that the CPU has: twice as fast as SSE2's. For the two files that
// compute slice digests.
#ifndef HEARTH_PROTO_XXH3_H_
#define HEARTH_PROTO_XXH3_H_

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

#endif  // HEARTH_PROTO_XXH3_H_
