// What do the results look like? A picture of them: block ops per second, latencies and memory as
// bars, one a structure; as lines over the number of threads where a structure was measured with
// several.
//
// *Format*: one SVG document without scripts or outside references. Latency bars have a logarithmic
// scale.

#ifndef KVATLAS_TOOLS_BENCH_SVG_PLOT_H_
#define KVATLAS_TOOLS_BENCH_SVG_PLOT_H_

#include <span>
#include <string>

#include "tools/bench/bench_result.h"

namespace kvatlas {

// `title` names the input. Skipped results are left out.
std::string ToSvg(std::span<const BenchResult> results, const std::string& title);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SVG_PLOT_H_
