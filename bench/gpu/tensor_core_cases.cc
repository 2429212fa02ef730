#include "bench/gpu/tensor_core_cases.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>

#include "worker/kernels/fused_dot.h"

namespace hearth {
namespace {

// Inputs of one tile: a [kTileRows][16], b [kTileColumns][16], c [kTileRows][kTileColumns].
struct Tile {
  uint16_t* a;
  uint16_t* b;
  float* c;
};

template <typename Value, typename Make>
void Fill(Value* values, int count, Make make) {
  for (int i = 0; i < count; ++i) values[i] = make(i);
}

constexpr int kOfA = kTileRows * kStepInputs, kOfB = kTileColumns * kStepInputs;

// Ranges from which the exponents of a, b and c are drawn.
struct Ranges {
  int a_low, a_high, b_low, b_high, c_low, c_high;
};
void FillRanges(const Ranges& r, CaseRandom* random, const Tile& tile) {
  Fill(tile.a, kOfA, [&](int) { return random->Bf16(r.a_low, r.a_high); });
  Fill(tile.b, kOfB, [&](int) { return random->Bf16(r.b_low, r.b_high); });
  Fill(tile.c, kTileOutputs, [&](int) { return random->Float(r.c_low, r.c_high); });
}

void FillNormals(CaseRandom* random, const Tile& tile) {
  Fill(tile.a, kOfA, [&](int) { return RoundToBf16(random->Normal()); });
  Fill(tile.b, kOfB, [&](int) { return RoundToBf16(random->Normal()); });
  Fill(tile.c, kTileOutputs, [&](int) { return 4 * random->Normal(); });
}

void FillModel(CaseRandom* random, const Tile& tile) {
  Fill(tile.a, kOfA, [&](int) {
    const float scale = random->OneIn(16) ? 30.0f : 1.0f;
    return RoundToBf16(scale * random->Normal());
  });
  Fill(tile.b, kOfB, [&](int) { return RoundToBf16(0.03f * random->Normal()); });
  Fill(tile.c, kTileOutputs, [&](int) { return 0.5f * random->Normal(); });
}

// Fills the tile with values of few significant bits, so that the lowest bits are next to the cut.
void FillCutEdge(CaseRandom* random, const Tile& tile) {
  static constexpr uint16_t kSignificands[] = {0, 0, 0, 0x01, 0x40, 0x7f};
  const auto sparse = [&](int low, int high) {
    const uint16_t value = random->Bf16(low, high);
    return static_cast<uint16_t>((value & 0xff80) | kSignificands[random->Below(6)]);
  };
  Fill(tile.a, kOfA, [&](int) { return sparse(-30, 0); });
  Fill(tile.b, kOfB, [&](int) { return sparse(0, 0); });
  Fill(tile.c, kTileOutputs, [&](int) { return random->Float(-30, 1); });
}

// Each row of a has 1, -1 and a small power of two at random indices; each column of b has one
// power of two. The result shows, for each pair of indices, whether the small value was kept or
// truncated.
void FillPairs(CaseRandom* random, const Tile& tile) {
  constexpr uint16_t kOne = 0x3f80, kSign = 0x8000;
  const auto power = [](int exponent) { return static_cast<uint16_t>((exponent + 127) << 7); };
  for (int row = 0; row < kTileRows; ++row) {
    uint16_t* a = tile.a + row * kStepInputs;
    std::fill_n(a, kStepInputs, uint16_t{0});
    const int one = random->Below(kStepInputs),
              minus = (one + random->Between(1, 15)) % kStepInputs;
    int small = random->Below(kStepInputs);
    while (small == one || small == minus) small = random->Below(kStepInputs);
    a[one] = kOne;
    if (!random->OneIn(4)) a[minus] = kOne | kSign;
    a[small] =
        static_cast<uint16_t>(power(-random->Between(18, 34)) | (random->OneIn(2) ? kSign : 0));
  }
  for (int column = 0; column < kTileColumns; ++column) {
    std::fill_n(tile.b + column * kStepInputs, kStepInputs, power(random->Between(-8, 8)));
  }
  Fill(tile.c, kTileOutputs, [&](int i) {
    const uint32_t scale = uint32_t{tile.b[i % kTileColumns * kStepInputs]} << 16;
    const int kind = random->Below(4);
    const uint32_t lower = static_cast<uint32_t>(random->Between(18, 34)) << 23;
    const uint32_t bits = kind == 0 ? scale : kind == 1 ? scale - lower : 0;
    return FloatOfBits(bits | (random->OneIn(2) ? 0x80000000 : 0));
  });
}

void FillCancellingSums(CaseRandom* random, const Tile& tile) {
  FillNormals(random, tile);
  for (int i = 0; i < kTileOutputs; ++i) {
    const uint16_t* a = tile.a + i / kTileColumns * kStepInputs;
    const uint16_t* b = tile.b + i % kTileColumns * kStepInputs;
    double sum = 0;
    for (int k = 0; k < kStepInputs; ++k) {
      sum += static_cast<double>(FloatOfBf16(a[k])) * static_cast<double>(FloatOfBf16(b[k]));
    }
    const uint32_t bits = BitsOfFloat(static_cast<float>(-sum));
    tile.c[i] = FloatOfBits(bits + static_cast<uint32_t>(random->Between(-3, 3)));
  }
}

// Sets the products at the second half of the indices so that they cancel most of the first half.
void MirrorHalves(CaseRandom* random, const Tile& tile) {
  constexpr int kHalf = kStepInputs / 2;
  for (int i = 0; i < kOfA; ++i) {
    if (i % kStepInputs >= kHalf) tile.a[i] = tile.a[i - kHalf] ^ 0x8000;
  }
  for (int i = 0; i < kOfB; ++i) {
    if (i % kStepInputs < kHalf) continue;
    tile.b[i] = static_cast<uint16_t>(tile.b[i - kHalf] ^ (random->OneIn(4) ? 1 : 0));
  }
}

void FillCancellingProducts(CaseRandom* random, const Tile& tile) {
  FillNormals(random, tile);
  MirrorHalves(random, tile);
  Fill(tile.c, kTileOutputs, [&](int) { return random->Float(-40, 0); });
}

void FillLargeCancelling(CaseRandom* random, const Tile& tile) {
  FillRanges({50, 80, 50, 80, 100, 127}, random, tile);
  MirrorHalves(random, tile);
}

void FillSubnormalInputs(CaseRandom* random, const Tile& tile) {
  FillRanges({-126, -100, 60, 127, -80, 0}, random, tile);
  Fill(tile.a, kOfA, [&](int i) {
    return random->OneIn(2) ? static_cast<uint16_t>(tile.a[i] & 0x807f) : tile.a[i];
  });
}

void FillSubnormalSums(CaseRandom* random, const Tile& tile) {
  FillRanges({-75, -60, -75, -60, -126, -120}, random, tile);
  Fill(tile.c, kTileOutputs, [&](int i) {
    const uint32_t bits = BitsOfFloat(tile.c[i]);
    const int kind = random->Below(4);
    if (kind == 0) return 0.0f;
    return kind == 1 ? FloatOfBits(bits & 0x807fffff) : tile.c[i];
  });
}

// Fills the tile so that the totals are close to the smallest subnormal number, with both signs.
void FillTinyTotals(CaseRandom* random, const Tile& tile) {
  FillRanges({-77, -73, -77, -73, 0, 0}, random, tile);
  Fill(tile.c, kTileOutputs, [&](int) {
    return FloatOfBits((random->OneIn(2) ? 0x80000000 : 0) + (random->OneIn(4) ? 1 : 0));
  });
}

uint16_t SignedZero(CaseRandom* random) { return random->OneIn(2) ? 0x8000 : 0; }

void FillZeros(CaseRandom* random, const Tile& tile) {
  FillNormals(random, tile);
  for (int i = 0; i < kOfA; ++i) {
    const int row = i / kStepInputs;
    if (row % 4 == 1 || !random->OneIn(4)) tile.a[i] = SignedZero(random);
    if (row % 4 == 0) tile.a[i] = 0x8000;
  }
  for (int i = 0; i < kOfB; ++i) {
    if (random->OneIn(4)) tile.b[i] = SignedZero(random);
    if (i / kStepInputs % 2 == 0)
      tile.b[i] &= 0x7fff;  // makes all products -0 in 1/8 of the outputs
  }
  Fill(tile.c, kTileOutputs,
       [&](int i) { return random->OneIn(2) ? (random->OneIn(2) ? -0.0f : 0.0f) : tile.c[i]; });
}

// Fills the tile with products of zero and large values, and with small products. The result shows
// whether the exponent of a zero counts.
void FillZerosTimesLarge(CaseRandom* random, const Tile& tile) {
  FillRanges({-40, -20, -40, -20, -80, -50}, random, tile);
  for (int i = 0; i < kOfA; ++i) {
    if (i % 2 == 0) tile.a[i] = SignedZero(random);
  }
  for (int i = 0; i < kOfB; ++i) {
    if (i % 2 == 0) tile.b[i] = random->Bf16(40, 120);
  }
}

// Fills the tile with products that are multiples of 2^-149, two products from 2^-163 to 2^-153,
// and products of zero and the largest values. The result shows the smallest value of the largest
// exponent, at which the cut is 2^-158.
void FillLeastExponent(CaseRandom* random, const Tile& tile) {
  Fill(tile.a, kOfA, [&](int i) {
    const int place = i % kStepInputs;
    if (place == 1 || place == 2) return static_cast<uint16_t>(random->Bf16(-97, -87) & 0xff81);
    const bool multiple = place == 0 || (place % 4 == 0 && random->OneIn(2));
    if (multiple) return static_cast<uint16_t>(random->Bf16(-83, -66) & 0xff80);
    return SignedZero(random);
  });
  Fill(tile.b, kOfB, [&](int i) {
    if (i % 4 == 3) return random->Bf16(100, 127);
    return static_cast<uint16_t>(random->Bf16(-66, -66) & 0xff80);
  });
  Fill(tile.c, kTileOutputs, [&](int) {
    return FloatOfBits((random->OneIn(2) ? 0x80000000 : 0) + (random->OneIn(8) ? 1 : 0));
  });
}

void FillSpecials(CaseRandom* random, const Tile& tile) {
  FillNormals(random, tile);
  static constexpr uint16_t kSpecials[] = {0x7f80, 0xff80, 0x7f80, 0xff80, 0x7fc0,
                                           0xffc0, 0x7fff, 0x7f81, 0,      0x8000};
  const auto with = [&](uint16_t value, int turns) {
    return random->OneIn(turns) ? kSpecials[random->Below(10)] : value;
  };
  Fill(tile.a, kOfA, [&](int i) { return with(tile.a[i], 64); });
  Fill(tile.b, kOfB, [&](int i) { return with(tile.b[i], 64); });
  Fill(tile.c, kTileOutputs,
       [&](int i) { return random->OneIn(8) ? FloatOfBf16(with(0, 1)) : tile.c[i]; });
}

// FillRanges with template arguments, because the table kClasses needs function pointers.
template <int a_low, int a_high, int b_low, int b_high, int c_low, int c_high>
void FillFromRanges(CaseRandom* random, const Tile& tile) {
  FillRanges({a_low, a_high, b_low, b_high, c_low, c_high}, random, tile);
}

template <int low, int high>
void FillNormalsAndSums(CaseRandom* random, const Tile& tile) {
  FillNormals(random, tile);
  Fill(tile.c, kTileOutputs, [&](int) { return random->Float(low, high); });
}

struct StepClass {
  const char* name;
  void (*fill)(CaseRandom*, const Tile&);
};
constexpr StepClass kClasses[] = {
    {"normal", FillNormals},
    {"model", FillModel},
    {"wide exponents", FillFromRanges<-30, 30, -30, 30, -60, 60>},
    {"whole range", FillFromRanges<-63, 62, -63, 62, -126, 126>},
    {"bits next to the cut", FillCutEdge},
    {"pairs of bits", FillPairs},
    {"sum much larger", FillNormalsAndSums<6, 34>},
    {"sum much smaller", FillNormalsAndSums<-34, -6>},
    {"sum cancels", FillCancellingSums},
    {"products cancel", FillCancellingProducts},
    {"subnormal inputs", FillSubnormalInputs},
    {"subnormal results", FillSubnormalSums},
    {"totals below 2^-149", FillTinyTotals},
    {"zeros", FillZeros},
    {"zeros times large", FillZerosTimesLarge},
    {"overflow", FillFromRanges<58, 66, 58, 66, 115, 127>},
    {"large products cancel", FillLargeCancelling},
    {"infinities and NaNs", FillSpecials},
    {"least exponent", FillLeastExponent},
};

}  // namespace

const uint16_t* Operands::RowOfA(size_t output) const {
  const size_t row = output / kTileOutputs * kTileRows + output % kTileOutputs / kTileColumns;
  return a.data() + row * static_cast<size_t>(inputs);
}

const uint16_t* Operands::RowOfB(size_t output) const {
  const size_t row = output / kTileOutputs * kTileColumns + output % kTileColumns;
  return b.data() + row * static_cast<size_t>(inputs);
}

uint64_t CaseRandom::Next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

float CaseRandom::Normal() {
  int64_t sum = 0;
  for (int i = 0; i < 6; ++i) {
    const uint64_t bits = Next();
    sum += static_cast<int64_t>((bits & 0xffffffff) + (bits >> 32)) - 0xffffffff;
  }
  return static_cast<float>(sum) / 4294967296.0f;
}

uint16_t CaseRandom::Bf16(int low, int high) {
  const int exponent = Between(low, high) + 127;
  return static_cast<uint16_t>((Next() & 0x807f) | static_cast<uint64_t>(exponent) << 7);
}

float CaseRandom::Float(int low, int high) {
  const uint64_t exponent = static_cast<uint64_t>(Between(low, high) + 127);
  return FloatOfBits(static_cast<uint32_t>((Next() & 0x807fffff) | exponent << 23));
}

uint16_t RoundToBf16(float value) {
  const uint32_t bits = BitsOfFloat(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void InThreads(int count, const std::function<void(int)>& work) {
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  const int most = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int t = 0; t < std::min(count, most); ++t) {
    threads.emplace_back([&] {
      for (int i = next++; i < count; i = next++) work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::string> StepClasses() {
  std::vector<std::string> names;
  for (const StepClass& step_class : kClasses) names.emplace_back(step_class.name);
  return names;
}

Operands NewOperands(const std::string& name, int tiles, int inputs) {
  const size_t values = static_cast<size_t>(tiles) * static_cast<size_t>(inputs);
  Operands operands{name, tiles, inputs, {}, {}, {}};
  operands.a.resize(values * kTileRows);
  operands.b.resize(values * kTileColumns);
  operands.c.resize(operands.outputs());
  return operands;
}

Operands StepOperands(size_t step_class, int tiles) {
  Operands operands = NewOperands(kClasses[step_class].name, tiles, kStepInputs);
  InThreads(tiles, [&](int t) {
    CaseRandom random(step_class << 32 | static_cast<uint64_t>(t));
    const ptrdiff_t tile = t;
    kClasses[step_class].fill(&random,
                              {operands.a.data() + tile * kOfA, operands.b.data() + tile * kOfB,
                               operands.c.data() + tile * kTileOutputs});
  });
  return operands;
}

Operands ChainOperands(int inputs, int tiles) {
  Operands operands = NewOperands("K " + std::to_string(inputs), tiles, inputs);
  CaseRandom random(uint64_t{99} << 32 | static_cast<uint64_t>(inputs));
  for (uint16_t& value : operands.a) {
    const float scale = random.OneIn(64) ? 40.0f : 1.0f;
    value = RoundToBf16(scale * random.Normal());
  }
  for (uint16_t& value : operands.b) value = RoundToBf16(0.03f * random.Normal());
  return operands;
}

}  // namespace hearth
