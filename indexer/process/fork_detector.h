// Detects that this process is a fork of the one that it was: a byte that the kernel wipes in
// children. Asking costs a load, where asking for the process id costs a system call each time.
//
// *Threads*: any.
// *Lifetime*: one per process image, made by the first caller, never freed: a child sees that of
// its parent if the parent had one, and knows from it that it is a child.
//
// Example:
//   const ForkDetector* mark = ForkDetector::OfThisProcess();   // nullptr: no memory
//   … if (mark->forked()) return;   // locks may be held by threads that do not exist here

#ifndef KVATLAS_INDEXER_PROCESS_FORK_DETECTOR_H_
#define KVATLAS_INDEXER_PROCESS_FORK_DETECTOR_H_

namespace kvatlas {

class ForkDetector {
 public:
  // The same one for all callers, also in a child, where `forked` is true.
  static const ForkDetector* OfThisProcess();

  // In a child of the process that made it.
  bool forked() const { return *here_ == 0; }

 private:
  explicit ForkDetector(volatile unsigned char* here) : here_(here) {}
  static ForkDetector* Make();

  const volatile unsigned char* const here_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_FORK_DETECTOR_H_
