// The integer product for one IntegerKernel, which HEARTH_INTEGER_KERNEL selects. Private to
// integer_product.cc, which includes this file once for each IntegerKernel; therefore no include
// guard.
//
// The code uses the compiler's vector types (vector_size): arithmetic operators act on each lane.
#if HEARTH_INTEGER_KERNEL == 0
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
#define HEARTH_INTEGER_NAMESPACE avx2_integers
#elif HEARTH_INTEGER_KERNEL == 1
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avxvnni")
#define HEARTH_INTEGER_NAMESPACE avx_vnni_integers
#else
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avx512f,avx512bw,avx512vnni")
#define HEARTH_INTEGER_NAMESPACE avx512_vnni_integers
#endif

namespace hearth {
namespace HEARTH_INTEGER_NAMESPACE {
namespace {

constexpr bool kHasVnni = HEARTH_INTEGER_KERNEL > 0;
constexpr int kLanes = HEARTH_INTEGER_KERNEL == 2 ? 16 : 8;
// Number of output vectors computed at once; their float sums and integer sums fill the registers.
constexpr int kVectors = HEARTH_INTEGER_KERNEL == 2 ? 3 : 2;
constexpr int kGrainVectors = static_cast<int>(kGrain) / kLanes;

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Whole = int32_t __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));

template <class Vector>
HWY_INLINE Vector LoadAs(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}
template <class Vector>
HWY_INLINE void StoreTo(const Vector& vector, void* to) {
  std::memcpy(to, &vector, sizeof vector);
}
HWY_INLINE Floats FloatsOf(Whole whole) { return __builtin_convertvector(whole, Floats); }

#if HEARTH_INTEGER_KERNEL == 2
HWY_INLINE Floats Set(float value) { return (Floats)_mm512_set1_ps(value); }
HWY_INLINE Floats MulAdd(Floats a, Floats b, Floats c) {
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
HWY_INLINE Floats WidenHalves(const std::byte* from) {
  return (Floats)_mm512_maskz_cvtph_ps(0xffff,
                                       _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
#else
HWY_INLINE Floats Set(float value) { return (Floats)_mm256_set1_ps(value); }
HWY_INLINE Floats MulAdd(Floats a, Floats b, Floats c) {
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
HWY_INLINE Floats WidenHalves(const std::byte* from) {
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#endif

// QuadSums: integer sums over the eight words of a block; each lane adds four products of one word.
// Call Add in ascending order of `word`. kBits: bits of a weight. Weights must not be negative;
// exception: kBits == 8 without VNNI.
#if HEARTH_INTEGER_KERNEL > 0
template <int kBits>
struct QuadSums {
  HWY_INLINE void Add(int /*word*/, Words weights, Words x) {
#if HEARTH_INTEGER_KERNEL == 2
    sums = (Whole)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)x);
#else
    sums = (Whole)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, (__m256i)x);
#endif
  }
  Whole sums;
};
#else
template <int kBits>
struct QuadSums {
  // Number of products that are added in 16 bits before widening; each is at most 2 * 127 *
  // (largest weight).
  static constexpr int kPairs = kBits == 8 ? 1 : kBits == 6 ? 2 : kBits == 5 ? 4 : 8;

  HWY_INLINE void Add(int word, Words weights, Words x) {
    __m256i w = (__m256i)weights, q = (__m256i)x;
    if (kBits == 8) {  // abs_epi8 maps -128 to the unsigned byte 128
      q = _mm256_sign_epi8(q, w);
      w = _mm256_abs_epi8(w);
    }
    const __m256i two = _mm256_maddubs_epi16(w, q);
    pairs = word % kPairs == 0 ? two : _mm256_add_epi16(pairs, two);
    if (word % kPairs != kPairs - 1) return;
    sums += (Whole)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  Whole sums;
  __m256i pairs;
};
#endif

// The number to subtract from each unpacked weight.
template <class B>
constexpr int kZeroHere = B::kBits == 8 ? (kHasVnni ? 128 : 0) : B::kZero;

// Reads weights directly from a packed panel: words of four integers, and the scales of each group
// of 32 inputs.
template <class B>
struct InPanel {
  static constexpr int64_t kGroups = B::kValues / 32;  // groups of 32 inputs in one block

  InPanel(const std::byte* panel, int64_t panel_width) : halves(panel), width(panel_width) {}

  HWY_INLINE const uint32_t* words() const {
    return reinterpret_cast<const uint32_t*>(halves + 2 * B::kHalves * width);
  }
  // Advances to the next group of 32 inputs.
  HWY_INLINE void Next() {
    group = (group + 1) % kGroups;
    if (group == 0) halves += B::kBytes * width;
  }
  HWY_INLINE void SetWhole() { width = kWidth; }
  // Prefetches the weights that are kAheadBytes ahead of this group.
  HWY_INLINE void Prefetch() const {
    const int64_t share = B::kBytes * width / kGroups;
    const std::byte* ahead = halves + group * share + kAheadBytes;
#pragma GCC unroll 4
    for (int64_t line = 0; line < share; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
  }

  // Returns word `word` (0 to 7) of the group for one vector of outputs that begins at output `at`.
  HWY_INLINE Words Word(int word, int64_t at) const {
    constexpr int kRunWords = static_cast<int>(B::kRunInputs / 4);
    const int64_t run = group * (8 / kRunWords) + word / kRunWords;
    word %= kRunWords;
    const uint32_t* from = words() + at;
    const RunPlace place = PlaceOf<B>(run);
    Words q = LoadAs<Words>(from + (place.low / 4 + word) * width);
    if (B::kBits == 8) return kHasVnni ? q ^ 0x80808080u : q;
    q = (place.is_upper ? q >> 4 : q) & 0x0f0f0f0fu;
    if constexpr (B::kBits == 5 && !B::kIsK) {  // spread four bits to four bytes
      const Words bits = LoadAs<Words>(from) >> static_cast<int>(16 * run + 4 * word) & 15u;
      q |= (bits * 0x00204081u & 0x01010101u) << 4;
    } else if constexpr (B::kBits > 4) {
      const Words bits = LoadAs<Words>(from + (place.high / 4 + word) * width) >> place.high_bit;
      q |= (bits & (B::kBits == 6 ? 0x03030303u : 0x01010101u)) << 4;
    }
    return q;
  }
  HWY_INLINE Floats Scale(int64_t at) const {
    const Floats scale = WidenHalves(halves + 2 * at);
    if constexpr (!B::kIsK || !B::kHasLeast) return scale;
    return scale * FloatsOf((Whole)SixBits(at, 0));
  }
  HWY_INLINE Floats Least(int64_t at) const {
    const Floats least = WidenHalves(halves + 2 * (width + at));
    if constexpr (!B::kIsK) return least;
    return least * -FloatsOf((Whole)SixBits(at, 1));
  }
  // Returns the group's 6-bit scale (`which` 0) or 6-bit least value (`which` 1). In groups 4 to 7
  // each of these numbers is stored in two pieces.
  HWY_INLINE Words SixBits(int64_t at, int which) const {
    const int shift = static_cast<int>(group % 4 * 8);
    const Words own = LoadAs<Words>(words() + which * width + at) >> shift;
    if (group < 4) return own & 63u;
    const Words both = LoadAs<Words>(words() + 2 * width + at) >> (shift + 4 * which);
    return (both & 15u) | (own >> 2 & 0x30u);
  }
  // For Q6_K: returns the signed 8-bit scale of one half of the group.
  HWY_INLINE Floats Part(int part, int64_t at) const {
    const int64_t run = 2 * group + part;
    const Words parts = LoadAs<Words>(words() + (48 + run / 4) * width + at);
    return FloatsOf((Whole)(parts << static_cast<int>(24 - run % 4 * 8)) >> 24);
  }

  const std::byte* halves;  // address of the block's float16 numbers
  int64_t width, group = 0;
};

// Reads weights that Unpack wrote to a Piece; has the interface of InPanel.
template <class B>
struct InPiece {
  explicit InPiece(const Piece& piece)
      : words(piece.words), scales(piece.scales), others(piece.others) {}

  HWY_INLINE void Next() {
    words += 8 * kWidth;
    scales += kWidth;
    others += 2 * kWidth;
  }
  HWY_INLINE void SetWhole() {}
  HWY_INLINE void Prefetch() const {}
  HWY_INLINE Words Word(int word, int64_t at) const {
    return LoadAs<Words>(words + word * kWidth + at);
  }
  HWY_INLINE Floats Scale(int64_t at) const { return LoadAs<Floats>(scales + at); }
  HWY_INLINE Floats Least(int64_t at) const { return LoadAs<Floats>(others + at); }
  HWY_INLINE Floats Part(int part, int64_t at) const {
    return LoadAs<Floats>(others + part * kWidth + at);
  }

  const uint32_t* words;
  const float *scales, *others;
};

// Unpacks a piece of a panel. REQUIRES: `from` is at the piece's first input.
template <class B>
HWY_NOINLINE void Unpack(InPanel<B> from, int64_t blocks, Piece* piece) {
  for (int64_t block = 0; block < blocks; ++block, from.Next()) {
    from.Prefetch();
    uint32_t* const words = piece->words + block * 8 * kWidth;
    float* const others = piece->others + block * 2 * kWidth;
    for (int64_t at = 0; at < from.width; at += kLanes) {
      StoreTo(from.Scale(at), piece->scales + block * kWidth + at);
      if constexpr (B::kHasLeast) StoreTo(from.Least(at), others + at);
#pragma GCC unroll 2
      for (int part = 0; part < (B::kBits == 6 ? 2 : 0); ++part) {
        StoreTo(from.Part(part, at), others + part * kWidth + at);
      }
#pragma GCC unroll 8
      for (int word = 0; word < 8; ++word) StoreTo(from.Word(word, at), words + word * kWidth + at);
    }
  }
}

// Computes the integer sums of a block of 32 inputs, for R rows by N vectors of outputs. For Q6_K,
// each half of the block is multiplied by its scale.
template <class B, int R, int N, class Source>
HWY_INLINE void SumBlock(const Source& source, const int32_t* x, int64_t at, Floats (&y)[R][N]) {
  constexpr bool kIsHalved = B::kBits == 6;
  constexpr int kParts = kIsHalved ? 2 : 1, kPartWords = 8 / kParts;
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) {
    QuadSums<B::kBits> sums[R][N];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int32_t sum = x[(kSumsWord + part) * R + r];
      if (!kIsHalved) sum += x[(kSumsWord + 1) * R + r];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n].sums = Whole{} - kZeroHere<B> * sum;
    }
#pragma GCC unroll 8
    for (int word = 0; word < kPartWords; ++word) {
      Words weights[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        weights[n] = source.Word(part * kPartWords + word, at + n * kLanes);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Words q = Words{} + static_cast<uint32_t>(x[(part * kPartWords + word) * R + r]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sums[r][n].Add(word, weights[n], q);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const Floats scale = kIsHalved ? source.Part(part, at + n * kLanes) : Floats{};
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Floats sum = FloatsOf(sums[r][n].sums);
        y[r][n] = kIsHalved ? MulAdd(sum, scale, part == 0 ? Floats{} : y[r][n]) : sum;
      }
    }
  }
}

// Computes R rows by N vectors of outputs for all blocks of a Tile.
template <class B, int R, int N, class Source>
HWY_INLINE void Multiply(Source source, const Tile& tile, int64_t at) {
  if (N * kLanes == kWidth) source.SetWhole();  // makes the width a constant
  Floats y[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      y[r][n] = tile.begins ? Floats{} : LoadAs<Floats>(tile.chains + r * kWidth + at + n * kLanes);
    }
  }
  const int32_t* x = tile.x;
  for (int64_t block = 0; block < tile.blocks; ++block, x += kBlockWords * R, source.Next()) {
    if (at == 0) source.Prefetch();
    Floats sums[R][N];
    SumBlock<B>(source, x, at, sums);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const Floats scale = source.Scale(at + n * kLanes);
      const Floats least = B::kHasLeast ? source.Least(at + n * kLanes) : Floats{};
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float d;
        std::memcpy(&d, &x[kScaleWord * R + r], sizeof d);
        y[r][n] = MulAdd(sums[r][n], Set(d) * scale, y[r][n]);
        if (!B::kHasLeast) continue;
        const auto sum = static_cast<float>(x[kSumsWord * R + r] + x[(kSumsWord + 1) * R + r]);
        y[r][n] = MulAdd(Set(sum), Set(d) * least, y[r][n]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      StoreTo(y[r][n], tile.chains + r * kWidth + at + n * kLanes);
    }
  }
}

template <class B, int R, class Source>
HWY_NOINLINE void TileOf(const Source& source, const Tile& tile) {
  constexpr int kWhole = kVectors * kLanes;
  int64_t at = 0;
  for (; at + kWhole <= tile.width; at += kWhole) Multiply<B, R, kVectors>(source, tile, at);
  for (; at < tile.width; at += kGrain) Multiply<B, R, kGrainVectors>(source, tile, at);
}

// kLeast: minimum rows of a tile.
template <class B, int kLeast, class Source>
HWY_INLINE void TileOfRows(int64_t rows, const Source& source, const Tile& tile) {
  static_assert(kIntegerTileRows == 4, "a case for each number of rows");
  if (rows == 4) return TileOf<B, 4>(source, tile);
  if (rows == 3) return TileOf<B, 3>(source, tile);
  if constexpr (kLeast == 1)
    return rows == 2 ? TileOf<B, 2>(source, tile) : TileOf<B, 1>(source, tile);
  assert(false);
}

// If few tiles use a panel, each tile reads the panel's weights in place, as one memory stream. If
// many tiles use it, each piece of the panel is unpacked once for all tiles.
template <class B>
void PanelOfType(const PackedRows& x, const PackedWeights& weights, int64_t panel, int64_t first,
                 int64_t end, float* chains) {
  const int64_t inputs = weights.inputs(), width = weights.PanelWidth(panel);
  const bool is_unpacked = end - first > kTilesInPanel;
  const int64_t most = is_unpacked ? kPieceInputs : inputs;
  Piece unpacked;
  for (int64_t k = 0; k < inputs; k += most) {
    const int64_t blocks = RowBlocks(std::min(most, inputs - k));
    const InPanel<B> stored(weights.Panel<std::byte>(panel, k), width);
    if (is_unpacked) Unpack<B>(stored, blocks, &unpacked);
    for (int64_t tile = first; tile < end; ++tile) {
      const int64_t row = x.FirstRow(tile), rows = x.FirstRow(tile + 1) - row;
      const Tile work{TileWords(x, tile, inputs) + k / 32 * kBlockWords * rows, blocks, k == 0,
                      chains + (row - x.FirstRow(first)) * kWidth, width};
      if (is_unpacked) {
        TileOfRows<B, 3>(rows, InPiece<B>(unpacked), work);
      } else {
        TileOfRows<B, 1>(rows, stored, work);
      }
    }
  }
}

void PanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel, int64_t first,
                 int64_t end, float* chains) {
  WithBlocks(weights.type(), [&](auto block) {
    PanelOfType<decltype(block)>(x, weights, panel, first, end, chains);
  });
}

#if HEARTH_INTEGER_KERNEL == 0

// Quantizes 32 inputs of one row in a tile of `rows` rows. `to`: first word of this block and row.
HWY_INLINE void QuantizeBlock(const float* from, int64_t rows, int32_t* to) {
  const __m256i size = _mm256_set1_epi32(0x7fffffff);
  __m256 x[4];
  __m256i most = _mm256_setzero_si256();  // compared as integers, so that NaN is the largest
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_loadu_ps(from + 8 * i);
    most = _mm256_max_epi32(most, _mm256_and_si256((__m256i)x[i], size));
  }
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  const float m = _mm_cvtss_f32((__m128)four);
  float d = m < kLeastQuantized ? 0 : std::numeric_limits<float>::quiet_NaN();
  __m256i bytes = _mm256_setzero_si256();
  if (m >= kLeastQuantized && m <= std::numeric_limits<float>::max()) {
    d = m / 127;
    const __m256 inverse = _mm256_set1_ps(127 / m);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
    bytes = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  // Sums of eight bytes; each byte has 128 added, because the instruction takes unsigned bytes.
  __m256i sums =
      _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  sums = _mm256_add_epi64(sums, _mm256_shuffle_epi32(sums, 0x4e));
  int32_t words[8];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), bytes);
  for (int word = 0; word < 8; ++word) to[word * rows] = words[word];
  std::memcpy(&to[kScaleWord * rows], &d, sizeof d);
  to[kSumsWord * rows] = _mm256_extract_epi32(sums, 0) - 16 * 128;
  to[(kSumsWord + 1) * rows] = _mm256_extract_epi32(sums, 4) - 16 * 128;
}

// Quantizes one row. The integer kernels of all instruction sets use this function.
void QuantizeRow(const float* row, int64_t inputs, int64_t rows, int32_t* to) {
  int64_t k = 0;
  for (; k + 32 <= inputs; k += 32, to += kBlockWords * rows) QuantizeBlock(row + k, rows, to);
  if (k == inputs) return;
  float padded[32] = {};
  std::copy_n(row + k, inputs - k, padded);
  QuantizeBlock(padded, rows, to);
}

#endif  // HEARTH_INTEGER_KERNEL == 0

}  // namespace
}  // namespace HEARTH_INTEGER_NAMESPACE
}  // namespace hearth
#undef HEARTH_INTEGER_NAMESPACE
HWY_POP_ATTRIBUTES
