// Whether a sanitizer runs the test. A sanitizer takes 10 times as long and increases memory.
#ifndef HEARTH_TESTS_SUPPORT_SANITIZED_H_
#define HEARTH_TESTS_SUPPORT_SANITIZED_H_

namespace hearth {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_SANITIZED_H_
