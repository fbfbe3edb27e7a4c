// On x86-64 a switch is a few instructions. `swapcontext`, which other processors use, asks the kernel for the mask of
// signals twice at each switch.
#include "switch.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)

// void host_switch(void** from, void* to): the ABI of System V; rbx, rbp and r12 to r15 are kept by calls. Kernels do not
// change the control words of floating-point numbers.
extern "C" void host_switch(void** from, void* to) __asm__("host_switch");
__asm__(R"(
    .text
    .globl host_switch
host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace host {

void prepare(Context& context, void* stack, size bytes, void (*entry)()) {
    constexpr size REGISTERS = 6;
    // A function begins 8 bytes below a multiple of 16, where its return address lies: here a null pointer.
    auto end = (reinterpret_cast<std::uintptr_t>(stack) + bytes) / 16 * 16;
    auto* top = reinterpret_cast<void**>(end) - (REGISTERS + 2);
    std::memset(top, 0, (REGISTERS + 2) * sizeof(void*));
    std::memcpy(top + REGISTERS, &entry, sizeof entry);
    context.top = top;
}

void switch_to(Context& from, const Context& to) { host_switch(&from.top, to.top); }

}  // namespace host

#else

namespace host {

void prepare(Context& context, void* stack, size bytes, void (*entry)()) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = stack;
    context.context.uc_stack.ss_size = bytes;
    context.context.uc_link = nullptr;
    makecontext(&context.context, entry, 0);
    // Hide the stack from the address sanitizer, which would unpoison all of it at every switch.
    context.context.uc_stack.ss_sp = nullptr;
    context.context.uc_stack.ss_size = 0;
}

void switch_to(Context& from, const Context& to) { swapcontext(&from.context, &to.context); }

}  // namespace host

#endif
