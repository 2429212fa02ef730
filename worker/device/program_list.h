// ProgramList: numbers all block programs, so that host code compiled without nvcc can launch them.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_PROGRAM_LIST_H_
#define HEARTH_WORKER_DEVICE_PROGRAM_LIST_H_

#include <type_traits>

#include "worker/device/adapter_program.h"
#include "worker/device/argmax_program.h"
#include "worker/device/attend_programs.h"
#include "worker/device/bf16_attend_program.h"
#include "worker/device/bf16_product_program.h"
#include "worker/device/device.h"
#include "worker/device/integer_product_program.h"
#include "worker/device/product_program.h"
#include "worker/device/row_programs.h"
#include "worker/device/warpgroup_product_program.h"

namespace hearth {

template <class... Types>
struct TypeList {
  static constexpr int kCount = sizeof...(Types);
};
template <class... A, class... B>
TypeList<A..., B...> Joined(TypeList<A...>, TypeList<B...>);

// Placeholder in ProgramList for a tile shape that cannot process a matrix pair.
struct NoProgram {};

// Template arguments: row lanes, rows of a thread, columns of a thread, row warps, column warps,
// inputs of a stage, stages, load warps. All tilings give the same bits; ChooseProduct
// (product_choice.h) selects the fastest one.
using ProductTilings = TypeList<
    // For one row.
    ProductTiling<1, 1, 1, 1, 1, 256, 4, 1>, ProductTiling<1, 1, 2, 1, 1, 128, 4>,
    // For two to eight rows.
    ProductTiling<2, 1, 1, 1, 1, 256, 4>, ProductTiling<4, 1, 2, 1, 1, 128, 8>,
    ProductTiling<1, 4, 2, 1, 1, 64, 6>, ProductTiling<4, 2, 4, 1, 2, 64, 4>,
    // For at most 32 rows.
    ProductTiling<2, 1, 2, 4, 1, 128, 4, 1>, ProductTiling<4, 4, 4, 1, 2, 64, 4>,
    ProductTiling<4, 8, 8, 1, 4, 32, 4>,
    // For more rows.
    ProductTiling<8, 4, 2, 1, 1, 64, 6>, ProductTiling<4, 4, 4, 2, 1, 64, 4>,
    ProductTiling<4, 8, 8, 2, 2, 64, 3>>;

// All products have the memory layout of ProductArguments, so a step can select the tile shape at
// run time.
static_assert(sizeof(ProductProgram<ProductTiling<1, 1, 2, 1, 1, 128, 4>, false>) ==
                  sizeof(ProductArguments) &&
              sizeof(Bf16ProductProgram<Bf16Tiling<1, 1>, true>) == sizeof(ProductArguments));

template <class Of, bool kTakesPairs = Of::kColumnLanes % 8 == 0 && Of::kColumnsEach % 2 == 0>
struct PairProduct {
  using Type = NoProgram;
};
template <class Of>
struct PairProduct<Of, true> {
  using Type = ProductProgram<Of, true>;
};

// Tilings for at most 8, 16 and 32 rows, and for more rows.
using Bf16Tilings =
    TypeList<Bf16Tiling<1, 1>, Bf16Tiling<2, 1>, Bf16Tiling<4, 1>, Bf16Tiling<4, 4>>;

template <class... All>
TypeList<Bf16ProductProgram<All, false>..., Bf16ProductProgram<All, true>...> Bf16ProductsOf(
    TypeList<All...>);

// Columns, inputs of a stage, stages: for many rows, on GPUs with warpgroup instructions. If a tile
// has at most 128 columns, two thread blocks share a processor.
using WarpgroupTilings = TypeList<WarpgroupTiling<64, 64, 4>, WarpgroupTiling<128, 32, 6>,
                                  WarpgroupTiling<192, 64, 5>, WarpgroupTiling<256, 64, 4>>;

template <class... All>
TypeList<WarpgroupProductProgram<All, false>..., WarpgroupProductProgram<All, true>...>
    WarpgroupProductsOf(TypeList<All...>);

template <class... All>
TypeList<ProductProgram<All, false>..., typename PairProduct<All>::Type...> ProductsOf(
    TypeList<All...>);

// Tilings for at most 8, 16 and 32 rows, and for more rows.
using IntegerTilings = TypeList<IntegerTiling<1, 1, 1, 1, 4, 8>, IntegerTiling<2, 1, 1, 2, 4, 6>,
                                IntegerTiling<4, 1, 1, 4, 4, 4>, IntegerTiling<4, 4, 4, 2, 2, 3>>;

template <IntegerForm kForm, class... All>
TypeList<IntegerProductProgram<kForm, All>...> IntegerProductsOf(TypeList<All...>);
using IntegerPrograms = decltype(Joined(
    Joined(TypeList<QuantizeProgram>(), IntegerProductsOf<IntegerForm::kInt8>(IntegerTilings())),
    Joined(Joined(IntegerProductsOf<IntegerForm::kInt4>(IntegerTilings()),
                  IntegerProductsOf<IntegerForm::kInt4Least>(IntegerTilings())),
           IntegerProductsOf<IntegerForm::kInt8Parts>(IntegerTilings()))));

template <class Kv>
using AttendProgramsOf = TypeList<AttendProgram<1, Kv>, AttendProgram<2, Kv>, AttendProgram<4, Kv>,
                                  AttendProgram<8, Kv>, AttendProgram<16, Kv>>;

using FloatPrograms = decltype(Joined(
    Joined(TypeList<EmbedProgram, AddNormProgram, HeadNormProgram, CombineProgram>(),
           Joined(AttendProgramsOf<float>(), AttendProgramsOf<BFloat16>())),
    ProductsOf(ProductTilings())));
inline constexpr int kFirstProduct = 14, kFirstBf16Product = FloatPrograms::kCount;
using Bf16Programs = decltype(Joined(FloatPrograms(), Bf16ProductsOf(Bf16Tilings())));
inline constexpr int kFirstWarpgroupProduct = Bf16Programs::kCount;
using WarpgroupPrograms = decltype(Joined(Bf16Programs(), WarpgroupProductsOf(WarpgroupTilings())));
inline constexpr int kQuantizeProgram = WarpgroupPrograms::kCount;
using AdapterPrograms =
    TypeList<LowRankInnerProgram, LowRankSumProgram<false>, LowRankSumProgram<true>>;
using Bf16AttendPrograms =
    TypeList<Bf16AttendProgram<8>, Bf16AttendProgram<16>, Bf16AttendProgram<64>>;
using SmallPrograms =
    TypeList<PackRowsProgram, ArgmaxProgram, QuantizeKvProgram<float>, QuantizeKvProgram<BFloat16>,
             DequantizeKvProgram<float>, DequantizeKvProgram<BFloat16>, WidenKvProgram>;
using OtherPrograms =
    decltype(Joined(Joined(SmallPrograms(), AdapterPrograms()), Bf16AttendPrograms()));
using ProgramList =
    decltype(Joined(Joined(WarpgroupPrograms(), IntegerPrograms()), OtherPrograms()));

// Returns the index of Program in the list, or -1 if it is not in the list.
template <class Program, class... Programs>
constexpr int NumberIn(TypeList<Programs...>) {
  int number = -1, i = 0;
  ((std::is_same_v<Program, Programs> ? number = i++ : i++), ...);
  return number;
}
template <class Program>
inline constexpr int kProgramNumber = NumberIn<Program>(ProgramList());

// How a product is computed; each kind has its own list of tilings.
enum class ProductKind { kFloat, kBf16, kWarpgroup, kInteger };
constexpr int TilingCount(ProductKind kind) {
  constexpr int kCounts[] = {ProductTilings::kCount, Bf16Tilings::kCount, WarpgroupTilings::kCount,
                             IntegerTilings::kCount};
  return kCounts[static_cast<int>(kind)];
}

// Returns the program number of a product with the given tiling: for a matrix pair with GELU if
// `is_gelu`, else for one matrix. REQUIRES: not kInteger (IntegerProductNumber).
constexpr int ProductNumber(ProductKind kind, int tiling, bool is_gelu) {
  constexpr int kFirst[] = {kFirstProduct, kFirstBf16Product, kFirstWarpgroupProduct};
  return kFirst[static_cast<int>(kind)] + tiling + (is_gelu ? TilingCount(kind) : 0);
}
constexpr int ProductNumber(int shape, bool is_gelu) {
  return ProductNumber(ProductKind::kFloat, shape, is_gelu);
}
constexpr int Bf16ProductNumber(int tiling, bool is_gelu) {
  return ProductNumber(ProductKind::kBf16, tiling, is_gelu);
}

// Returns the program number of an integer product.
constexpr int IntegerProductNumber(IntegerForm form, int tiling) {
  return kQuantizeProgram + 1 + (static_cast<int>(form) - 1) * IntegerTilings::kCount + tiling;
}

template <class Program>
void Launch(Device* device, const Program& program, int blocks) {
  static_assert(kProgramNumber<Program> >= 0, "not in ProgramList");
  device->Launch(kProgramNumber<Program>, &program, blocks);
}

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_PROGRAM_LIST_H_
