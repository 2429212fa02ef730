#include "cache_store/disk/slice_codec.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// On disk: never change the meaning of an existing magic. Header: magic, element bytes, slice
// bytes, then for each plane, the first being the elements' lowest bytes, its stored size with
// kCompressed where it is a zstd frame; then the planes. Little endian.
constexpr uint32_t kMagic = 0x315A5048;  // "HPZ1"
constexpr uint32_t kCompressed = uint32_t{1} << 31;
constexpr uint32_t kMaxElementBytes = 4;
// Level 1 already gets what entropy coding can; higher ones look for repeats that are not there.
constexpr int kZstdLevel = 1;
constexpr size_t kSamples = 4096;
constexpr double kNoiseBits = 7.5;  // a plane of more entropy than this, of 8, stays as it is
constexpr char kWrongSize[] = "a plane has the wrong size";

size_t HeaderBytes(uint32_t element_bytes) { return 16 + 4 * size_t{element_bytes}; }

// Sign behind the mantissa: then the exponent of float32 and bfloat16 is one byte, the highest.
template <typename Word>
Word Rotated(Word word) {
  constexpr int kBits = 8 * sizeof(Word);
  return static_cast<Word>(word << 1 | word >> (kBits - 1));
}
template <typename Word>
Word RotatedBack(Word word) {
  constexpr int kBits = 8 * sizeof(Word);
  return static_cast<Word>(word >> 1 | word << (kBits - 1));
}

template <typename Word>
Word LoadWord(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Bits of entropy of each plane, from some of the elements.
template <typename Word>
std::array<double, sizeof(Word)> SampleEntropy(const std::byte* slice, size_t elements) {
  std::array<std::array<uint32_t, 256>, sizeof(Word)> counts{};
  const size_t samples = std::min(elements, kSamples);
  // Odd: an even one would always meet the same dimensions of the head.
  const size_t stride = (elements / samples - 1) | 1;
  for (size_t i = 0; i < samples; ++i) {
    const Word word = Rotated(LoadWord<Word>(slice + i * stride * sizeof(Word)));
    for (size_t plane = 0; plane < sizeof(Word); ++plane) {
      ++counts[plane][(word >> (8 * plane)) & 0xFF];
    }
  }
  std::array<double, sizeof(Word)> bits{};
  for (size_t plane = 0; plane < sizeof(Word); ++plane) {
    for (const uint32_t count : counts[plane]) {
      if (count == 0) continue;
      const double share = static_cast<double>(count) / static_cast<double>(samples);
      bits[plane] -= share * std::log2(share);
    }
  }
  return bits;
}

template <typename Word>
void Split(const std::byte* slice, size_t elements, std::byte* planes) {
  for (size_t i = 0; i < elements; ++i) {
    const Word word = Rotated(LoadWord<Word>(slice + i * sizeof(Word)));
    for (size_t plane = 0; plane < sizeof(Word); ++plane) {
      planes[plane * elements + i] = static_cast<std::byte>(word >> (8 * plane));
    }
  }
}

template <typename Word>
void Join(const std::array<const std::byte*, kMaxElementBytes>& planes, size_t elements,
          std::byte* slice) {
  for (size_t i = 0; i < elements; ++i) {
    Word word = 0;
    for (size_t plane = 0; plane < sizeof(Word); ++plane) {
      word = static_cast<Word>(word | static_cast<Word>(planes[plane][i]) << (8 * plane));
    }
    word = RotatedBack(word);
    std::memcpy(slice + i * sizeof(Word), &word, sizeof(word));
  }
}

// One for each thread: making one costs more than compressing a small plane.
ZSTD_CCtx* Compressor() {
  thread_local const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(),
                                                                                ZSTD_freeCCtx);
  return context.get();
}
ZSTD_DCtx* Decompressor() {
  thread_local const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                                ZSTD_freeDCtx);
  return context.get();
}

template <typename Word>
std::optional<SliceView> Encode(absl::Span<const std::byte> slice) {
  const size_t elements = slice.size() / sizeof(Word);
  const auto bits = SampleEntropy<Word>(slice.data(), elements);
  double kept_bits = 0;
  for (const double plane_bits : bits) kept_bits += plane_bits < kNoiseBits ? plane_bits : 8;
  if (kept_bits > (1 - kMinCodecGain) * 8 * sizeof(Word)) return std::nullopt;

  const std::unique_ptr<std::byte[]> planes(new std::byte[slice.size()]);
  Split<Word>(slice.data(), elements, planes.get());
  const auto most = static_cast<size_t>((1 - kMinCodecGain) * static_cast<double>(slice.size()));
  std::shared_ptr<std::byte> out = AllocateSlice(most);
  size_t at = HeaderBytes(sizeof(Word));
  if (at >= most) return std::nullopt;
  const uint32_t head[2] = {kMagic, sizeof(Word)};
  const uint64_t slice_bytes = slice.size();
  std::memcpy(out.get(), head, 8);
  std::memcpy(out.get() + 8, &slice_bytes, 8);
  for (size_t plane = 0; plane < sizeof(Word); ++plane) {
    const std::byte* from = planes.get() + plane * elements;
    uint32_t stored = static_cast<uint32_t>(elements);
    if (bits[plane] < kNoiseBits) {
      const size_t made =
          ZSTD_compressCCtx(Compressor(), out.get() + at, most - at, from, elements, kZstdLevel);
      if (ZSTD_isError(made) != 0) return std::nullopt;  // no room: the sample flattered it
      stored = static_cast<uint32_t>(made) | kCompressed;
    } else {
      if (most - at < elements) return std::nullopt;
      std::memcpy(out.get() + at, from, elements);
    }
    std::memcpy(out.get() + 16 + 4 * plane, &stored, 4);
    at += stored & ~kCompressed;
  }
  const absl::Span<const std::byte> encoded(out.get(), at);
  return SliceView{std::move(out), encoded};
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("compressed slice: ", what));
}

template <typename Word>
absl::StatusOr<SliceView> Decode(absl::Span<const std::byte> stored, uint64_t slice_bytes) {
  const size_t elements = slice_bytes / sizeof(Word);
  size_t at = HeaderBytes(sizeof(Word));
  if (stored.size() < at) return Damaged("its header is torn");
  std::array<const std::byte*, kMaxElementBytes> planes{};
  std::array<std::unique_ptr<std::byte[]>, kMaxElementBytes> memory;
  for (size_t plane = 0; plane < sizeof(Word); ++plane) {
    const uint32_t field = LoadWord<uint32_t>(stored.data() + 16 + 4 * plane);
    const size_t bytes = field & ~kCompressed;
    if (bytes > stored.size() - at) return Damaged("a plane reaches beyond its end");
    planes[plane] = stored.data() + at;
    at += bytes;
    if ((field & kCompressed) == 0) {
      if (bytes != elements) return Damaged(kWrongSize);
      continue;
    }
    memory[plane].reset(new std::byte[elements]);
    const size_t made =
        ZSTD_decompressDCtx(Decompressor(), memory[plane].get(), elements, planes[plane], bytes);
    if (ZSTD_isError(made) != 0) return Damaged(ZSTD_getErrorName(made));
    if (made != elements) return Damaged(kWrongSize);
    planes[plane] = memory[plane].get();
  }
  if (at != stored.size()) return Damaged("bytes after its end");
  std::shared_ptr<std::byte> slice = AllocateSlice(slice_bytes);
  Join<Word>(planes, elements, slice.get());
  const absl::Span<const std::byte> view(slice.get(), slice_bytes);
  return SliceView{std::move(slice), view};
}

}  // namespace

std::optional<SliceView> EncodeSlice(absl::Span<const std::byte> slice, uint32_t element_bytes) {
  if (slice.empty() || slice.size() % element_bytes != 0 ||
      slice.size() / element_bytes >= kCompressed) {
    return std::nullopt;
  }
  if (element_bytes == 4) return Encode<uint32_t>(slice);
  if (element_bytes == 2) return Encode<uint16_t>(slice);
  return std::nullopt;
}

bool IsEncodedSlice(absl::Span<const std::byte> stored, uint64_t slice_bytes) {
  return stored.size() < slice_bytes && stored.size() >= 16 &&
         LoadWord<uint32_t>(stored.data()) == kMagic;
}

absl::StatusOr<SliceView> DecodeSlice(absl::Span<const std::byte> stored, uint64_t slice_bytes) {
  assert(IsEncodedSlice(stored, slice_bytes));
  const auto element_bytes = LoadWord<uint32_t>(stored.data() + 4);
  if (LoadWord<uint64_t>(stored.data() + 8) != slice_bytes) {
    return Damaged(absl::StrCat("is of another size than ", slice_bytes, " bytes"));
  }
  if (element_bytes == 4 && slice_bytes % 4 == 0) return Decode<uint32_t>(stored, slice_bytes);
  if (element_bytes == 2 && slice_bytes % 2 == 0) return Decode<uint16_t>(stored, slice_bytes);
  return Damaged(absl::StrCat("elements of ", element_bytes, " bytes"));
}

absl::StatusOr<SliceView> AsSlice(SliceView stored, uint64_t slice_bytes) {
  if (!IsEncodedSlice(stored.bytes, slice_bytes)) return stored;
  return DecodeSlice(stored.bytes, slice_bytes);
}

}  // namespace hearth
