// Which kernels run: the widest instruction set that this machine has, or the one that RML_ISA names.
#ifndef RML_DISPATCH_H
#define RML_DISPATCH_H
#include "kernels/kernels.h"

enum { RML_MAX_ISAS = 4 };

// Writes the instruction sets that are compiled in and that this machine has, widest last; returns how many.
int rml_isas(const rml_isa *isas[RML_MAX_ISAS]);

// Returns the instruction set of that name, or null if it is unknown or this machine lacks it.
const rml_isa *rml_find_isa(const char *name);
#endif
