// The integer product for one of the instruction sets of IntegerKernel, HEARTH_INTEGER_KERNEL.
// Private to integer_product.cc, which includes it once for each. No include guard.
//
// Vectors are the compiler's own types: operators work on each lane.
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
// Vectors of outputs at once: as many chains, and sums of integers, as there are registers for.
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

// Sums of four products each, over the eight words of a block: Add in ascending order of `word`.
// kBits: of the weights, which are not negative but with kBits == 8 where there is no VNNI.
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
  // Pairs of products are added in 16 bits, as many as fit: 2 * 127 times the largest weight.
  static constexpr int kPairs = kBits == 8 ? 1 : kBits == 6 ? 2 : kBits == 5 ? 4 : 8;

  HWY_INLINE void Add(int word, Words weights, Words x) {
    __m256i w = (__m256i)weights, q = (__m256i)x;
    if (kBits == 8) {  // -128 has a magnitude as well
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

// What is taken from each of the weights' integers, as they are unpacked here.
template <class B>
constexpr int kZeroHere = B::kBits == 8 ? (kHasVnni ? 128 : 0) : B::kZero;

// One more link of R by N chains: a block's sums, scaled.
template <class B, int R, int N>
HWY_INLINE void AddBlock(const Floats (&sums)[R][N], const int32_t* x, const float* scales,
                         const float* leasts, Floats (&y)[R][N]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float scale;
    std::memcpy(&scale, &x[kScaleWord * R + r], sizeof scale);
    const Floats d = Set(scale);
    const Floats all = Set(static_cast<float>(x[kSumsWord * R + r] + x[(kSumsWord + 1) * R + r]));
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      y[r][n] = MulAdd(sums[r][n], d * LoadAs<Floats>(scales + n * kLanes), y[r][n]);
      if (!B::kHasLeast) continue;
      y[r][n] = MulAdd(all, d * LoadAs<Floats>(leasts + n * kLanes), y[r][n]);
    }
  }
}

// R rows by N vectors of outputs, all blocks of a piece.
template <class B, int R, int N>
HWY_INLINE void Multiply(const Piece& piece, const Tile& tile, int64_t at) {
  constexpr bool kIsHalved = B::kBits == 6;
  constexpr int kParts = kIsHalved ? 2 : 1, kPartWords = 8 / kParts;
  Floats y[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      y[r][n] = tile.begins ? Floats{} : LoadAs<Floats>(tile.chains + r * kWidth + at + n * kLanes);
    }
  }
  const int32_t* x = tile.x;
  const uint32_t* words = piece.words + at;
  for (int64_t block = 0; block < tile.blocks; ++block, x += kBlockWords * R) {
    Floats products[R][N];
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
      for (int word = 0; word < kPartWords; ++word, words += kWidth) {
        Words weights[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) weights[n] = LoadAs<Words>(words + n * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Words q = Words{} + static_cast<uint32_t>(x[(part * kPartWords + word) * R + r]);
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) sums[r][n].Add(word, weights[n], q);
        }
      }
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const Floats scale =
            LoadAs<Floats>(piece.others + (block * 2 + part) * kWidth + at + n * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Floats sum = FloatsOf(sums[r][n].sums);
          products[r][n] =
              kIsHalved ? MulAdd(sum, scale, part == 0 ? Floats{} : products[r][n]) : sum;
        }
      }
    }
    AddBlock<B>(products, x, piece.scales + block * kWidth + at,
                piece.others + block * 2 * kWidth + at, y);
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      StoreTo(y[r][n], tile.chains + r * kWidth + at + n * kLanes);
    }
  }
}

template <class B, int R>
HWY_NOINLINE void TileOfPiece(const Piece& piece, const Tile& tile) {
  constexpr int kWhole = kVectors * kLanes;
  int64_t at = 0;
  for (; at + kWhole <= tile.width; at += kWhole) Multiply<B, R, kVectors>(piece, tile, at);
  for (; at < tile.width; at += kGrain) Multiply<B, R, kGrainVectors>(piece, tile, at);
}

// The words of a run's integers, of one vector of outputs.
template <class B>
HWY_INLINE void UnpackRun(const uint32_t* words, int64_t width, int64_t run, uint32_t* to) {
  const RunPlace place = PlaceOf<B>(run);
  for (int64_t word = 0; word < B::kRunInputs / 4; ++word, to += kWidth) {
    Words q = LoadAs<Words>(words + (place.low / 4 + word) * width);
    if constexpr (B::kBits == 8) {
      StoreTo(kHasVnni ? q ^ 0x80808080u : q, to);
      continue;
    }
    q = (place.is_upper ? q >> 4 : q) & 0x0f0f0f0fu;
    if constexpr (B::kBits == 5 && !B::kIsK) {  // four bits in one word, to a byte each
      const Words bits = LoadAs<Words>(words) >> static_cast<int>(16 * run + 4 * word) & 15u;
      q |= (bits * 0x00204081u & 0x01010101u) << 4;
    } else if constexpr (B::kBits > 4) {
      const Words bits = LoadAs<Words>(words + (place.high / 4 + word) * width) >> place.high_bit;
      q |= (bits & (B::kBits == 6 ? 0x03030303u : 0x01010101u)) << 4;
    }
    StoreTo(q, to);
  }
}

// What 32 inputs' sums are multiplied by, and what is added.
template <class B>
HWY_INLINE void UnpackScales(const std::byte* halves, const uint32_t* words, int64_t width,
                             int64_t group, float* scales, float* others) {
  Floats scale = WidenHalves(halves);
  Floats least = B::kHasLeast ? WidenHalves(halves + 2 * width) : Floats{};
  if constexpr (B::kBits == 6) {
    for (int64_t part = 0; part < 2; ++part) {  // bytes with a sign
      const int64_t run = 2 * group + part;
      const Words parts = LoadAs<Words>(words + (48 + run / 4) * width);
      StoreTo(FloatsOf((Whole)(parts << static_cast<int>(24 - run % 4 * 8)) >> 24),
              others + part * kWidth);
    }
  } else if constexpr (B::kIsK) {  // 6 bits each, those of the last four groups in two pieces
    const int shift = static_cast<int>(group % 4 * 8);
    Words of_scale = LoadAs<Words>(words) >> shift;
    Words of_least = LoadAs<Words>(words + width) >> shift;
    if (group >= 4) {
      const Words both = LoadAs<Words>(words + 2 * width) >> shift;
      of_scale = (both & 15u) | (of_scale >> 2 & 0x30u);
      of_least = (both >> 4 & 15u) | (of_least >> 2 & 0x30u);
    }
    scale *= FloatsOf((Whole)(of_scale & 63u));
    least *= -FloatsOf((Whole)(of_least & 63u));
  }
  StoreTo(scale, scales);
  if (B::kHasLeast) StoreTo(least, others);
}

template <class B>
HWY_NOINLINE void Unpack(const std::byte* panel, int64_t width, int64_t blocks, Piece* piece) {
  constexpr int64_t kGroups = B::kValues / 32, kGroupRuns = 32 / B::kRunInputs;
  for (int64_t group = 0; group < blocks; ++group) {
    const std::byte* halves = panel + group / kGroups * B::kBytes * width;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(halves + 2 * B::kHalves * width);
    const int64_t share = B::kBytes * width / kGroups;  // of what comes some steps later
    const std::byte* ahead = halves + group % kGroups * share + kAheadBytes;
    for (int64_t line = 0; line < share; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
    for (int64_t at = 0; at < width; at += kLanes) {
      UnpackScales<B>(halves + 2 * at, words + at, width, group % kGroups,
                      piece->scales + group * kWidth + at, piece->others + group * 2 * kWidth + at);
#pragma GCC unroll 2
      for (int64_t run = 0; run < kGroupRuns; ++run) {
        UnpackRun<B>(words + at, width, group % kGroups * kGroupRuns + run,
                     piece->words + (group * 8 + run * B::kRunInputs / 4) * kWidth + at);
      }
    }
  }
}

template <class B>
void PanelOfType(const PackedRows& x, const PackedWeights& weights, int64_t panel, int64_t first,
                 int64_t end, float* chains) {
  using Function = void (*)(const Piece&, const Tile&);
  constexpr Function kTiles[] = {TileOfPiece<B, 1>, TileOfPiece<B, 2>, TileOfPiece<B, 3>,
                                 TileOfPiece<B, 4>};
  static_assert(std::size(kTiles) == kIntegerTileRows, "one for each number of rows");
  const int64_t inputs = weights.inputs(), width = weights.PanelWidth(panel);
  Piece piece;
  for (int64_t k = 0; k < inputs; k += kPieceInputs) {
    const int64_t blocks = RowBlocks(std::min(kPieceInputs, inputs - k));
    Unpack<B>(weights.Panel<std::byte>(panel, k), width, blocks, &piece);
    for (int64_t tile = first; tile < end; ++tile) {
      const int64_t row = x.FirstRow(tile), rows = x.FirstRow(tile + 1) - row;
      kTiles[rows - 1](piece, {TileWords(x, tile, inputs) + k / 32 * kBlockWords * rows, blocks,
                               k == 0, chains + (row - x.FirstRow(first)) * kWidth, width});
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

// One row of a tile of `rows`: `to` is its first word. Kernels of all sets use it.
void QuantizeRow(const float* row, int64_t inputs, int64_t rows, int32_t* to) {
  const __m256i size = _mm256_set1_epi32(0x7fffffff);
  for (int64_t k = 0; k < inputs; k += 32, to += kBlockWords * rows) {
    float padded[32] = {};
    const float* from = row + k;
    if (inputs - k < 32) {
      std::copy_n(from, inputs - k, padded);
      from = padded;
    }
    __m256 x[4];
    __m256i most = _mm256_setzero_si256();  // as bits: a NaN's are the largest
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_loadu_ps(from + 8 * i);
      most = _mm256_max_epi32(most, _mm256_and_si256((__m256i)x[i], size));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    const float m = _mm_cvtss_f32((__m128)four);
    float d = m < kLeastQuantized ? 0 : std::numeric_limits<float>::quiet_NaN();
    alignas(32) int32_t words[8] = {}, sums[8] = {};
    if (m >= kLeastQuantized && m <= std::numeric_limits<float>::max()) {
      d = m / 127;
      const __m256 inverse = _mm256_set1_ps(127 / m);
      __m256i q[4];
      for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
      const __m256i bytes = _mm256_permutevar8x32_epi32(
          _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])),
          _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
      _mm256_store_si256(reinterpret_cast<__m256i*>(words), bytes);
      const __m256i ones = _mm256_set1_epi16(1);
      __m256i sum = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), ones);
      sum = _mm256_hadd_epi32(sum, sum);
      _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_hadd_epi32(sum, sum));
    }
    for (int word = 0; word < 8; ++word) to[word * rows] = words[word];
    std::memcpy(&to[kScaleWord * rows], &d, sizeof d);
    to[kSumsWord * rows] = sums[0];
    to[(kSumsWord + 1) * rows] = sums[4];
  }
}

#endif  // HEARTH_INTEGER_KERNEL == 0

}  // namespace
}  // namespace HEARTH_INTEGER_NAMESPACE
}  // namespace hearth
#undef HEARTH_INTEGER_NAMESPACE
HWY_POP_ATTRIBUTES
