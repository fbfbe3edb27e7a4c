/* The one function of bcryptprimitives.dll that Rust's standard library calls, for versions of wine that lack this DLL (before 9):
 *
 *   x86_64-w64-mingw32-gcc -O2 -shared -o FOLDER/bcryptprimitives.dll tests/windows/bcryptprimitives.c -ladvapi32
 *   export WINEPATH=FOLDER
 *
 * Windows has its own. Nothing of this is part of swinq.
 */

#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID bytes, ULONG length);

/* Fills `bytes` with `length` random bytes. */
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T length)
{
    while (length > 0) {
        ULONG part = length < 65536 ? (ULONG)length : 65536;
        if (!SystemFunction036(bytes, part))
            return FALSE;
        bytes += part;
        length -= part;
    }
    return TRUE;
}
