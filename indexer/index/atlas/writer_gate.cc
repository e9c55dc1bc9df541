#include "indexer/index/atlas/writer_gate_slow.h"

namespace kvatlas::atlas {

template class BasicWriterGate<RealMachine>;

}  // namespace kvatlas::atlas
