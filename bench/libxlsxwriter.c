/*
 * The yardstick of bench/xlsx.ts: PostgreSQL's COPY text on standard input, one workbook out, by libxlsxwriter in its
 * constant-memory mode. Feed it a file, or `psql -c "COPY (SELECT …) TO STDOUT"`.
 *
 *   cc -O2 -o libxlsxwriter bench/libxlsxwriter.c -lxlsxwriter
 *   libxlsxwriter out.xlsx tttnb… < rows        one letter a column: t text, n number, b boolean, j JSON scalar
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xlsxwriter.h>

static const int rows_per_sheet = 1048575; /* Excel's 1,048,576 less the header row */

/* Undoes COPY's backslash escapes in place. */
static void unescape(char *text) {
  char *from = strchr(text, '\\'), *to = from;
  if (!from) return;
  for (; *from; from++, to++) {
    if (*from != '\\') { *to = *from; continue; }
    switch (*++from) {
      case 'n': *to = '\n'; break;
      case 't': *to = '\t'; break;
      case 'r': *to = '\r'; break;
      case 'b': *to = '\b'; break;
      case 'f': *to = '\f'; break;
      case 'v': *to = '\v'; break;
      default: *to = *from;
    }
  }
  *to = 0;
}

static void cell(lxw_worksheet *sheet, lxw_row_t row, lxw_col_t column, char kind, char *field) {
  size_t length;
  if (strcmp(field, "\\N") == 0) return;
  if (kind == 'n') { worksheet_write_number(sheet, row, column, strtod(field, NULL), NULL); return; }
  if (kind == 'b') { worksheet_write_boolean(sheet, row, column, field[0] == 't', NULL); return; }
  if (kind == 'j') {
    if (strcmp(field, "null") == 0) return;
    if (strcmp(field, "true") == 0 || strcmp(field, "false") == 0) {
      worksheet_write_boolean(sheet, row, column, field[0] == 't', NULL);
      return;
    }
    if (field[0] != '"') { worksheet_write_number(sheet, row, column, strtod(field, NULL), NULL); return; }
    field++;
    length = strlen(field);
    if (length) field[length - 1] = 0;
  }
  unescape(field);
  worksheet_write_string(sheet, row, column, field, NULL);
}

int main(int argc, char **argv) {
  lxw_workbook_options options = {.constant_memory = LXW_TRUE};
  lxw_workbook *book;
  lxw_worksheet *sheet = NULL;
  lxw_format *bold;
  lxw_row_t row = 0;
  char *line = NULL;
  size_t capacity = 0, columns, i;
  ssize_t length;

  if (argc != 3) {
    fprintf(stderr, "usage: libxlsxwriter FILE KINDS < rows\n");
    return 2;
  }
  columns = strlen(argv[2]);
  book = workbook_new_opt(argv[1], &options);
  bold = workbook_add_format(book);
  format_set_bold(bold);

  while ((length = getline(&line, &capacity, stdin)) > 0) {
    char *field = line;
    if (line[length - 1] == '\n') line[length - 1] = 0;
    if (!sheet || row > rows_per_sheet) {
      sheet = workbook_add_worksheet(book, NULL);
      worksheet_freeze_panes(sheet, 1, 0);
      for (i = 0; i < columns; i++) worksheet_write_string(sheet, 0, (lxw_col_t)i, "column", bold);
      row = 1;
    }
    for (i = 0; i < columns && field; i++) {
      char *end = strchr(field, '\t');
      if (end) *end = 0;
      cell(sheet, row, (lxw_col_t)i, argv[2][i], field);
      field = end ? end + 1 : NULL;
    }
    row++;
  }
  free(line);
  return workbook_close(book) == LXW_NO_ERROR ? 0 : 1;
}
