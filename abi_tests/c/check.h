/* What the test programs share. They are run as PROGRAM REPORT SCRATCH_FOLDER, write failures to the report,
 * and print nothing: the library must not either. */
#ifndef CHECK_H
#define CHECK_H

#include <riftco/riftco.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE* check_report;
static const char* check_scratch;
static int check_failures;

static inline void check_begin(int argc, char** argv) {
  if (argc != 3 || (check_report = fopen(argv[1], "w")) == NULL) exit(99);
  check_scratch = argv[2];
}

static inline int check_end(void) {
  fclose(check_report);
  return check_failures != 0;
}

static inline void check_fail(const char* file, int line, const char* what) {
  check_failures++;
  fprintf(check_report, "%s:%d: %s\n    last error: %s\n", file, line, what, rt_last_error());
}

/* `call` starts with the name of the function that must be named in the message. */
static inline void check_refused(const char* file, int line, const char* call, rt_status status,
                                 rt_status expected, const char* text) {
  const char* error = rt_last_error();
  const size_t name = strcspn(call, "(");
  if (status != expected) {
    check_fail(file, line, call);
    fprintf(check_report, "    status %d (%s), expected %d\n", (int)status, rt_status_name(status),
            (int)expected);
  } else if (error[0] != '[' || strncmp(error + 1, call, name) != 0 || error[1 + name] != ']' ||
             strstr(error, text) == NULL) {
    check_fail(file, line, call);
    fprintf(check_report, "    expected: %s\n", text);
  }
}

#define CHECK(condition)                                          \
  do {                                                            \
    if (!(condition)) check_fail(__FILE__, __LINE__, #condition); \
  } while (0)

/* Succeeds and clears the last error. */
#define OK(call)                                                                              \
  do {                                                                                        \
    if ((call) != RT_OK || rt_last_error()[0] != '\0') check_fail(__FILE__, __LINE__, #call); \
  } while (0)

/* Fails with this status and a message that names the function and holds the text. */
#define REFUSED(call, status, text) check_refused(__FILE__, __LINE__, #call, call, status, text)

#endif
