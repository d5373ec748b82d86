/* The umbrella header of riftco: include this one.
 *
 *   rt_model* model = NULL;
 *   if (rt_model_load(path, strlen(path), NULL, &model)) return fail(rt_last_error());
 *   rt_generator* generator = NULL;
 *   rt_generator_create(model, NULL, NULL, &generator);   (cache and tokenizer by default)
 *   rt_generator_start(generator, "Once", 4, NULL);                (greedy, 256 new tokens)
 *   rt_generation_piece piece = {.struct_size = sizeof piece};
 *   while (rt_generator_next(generator, &piece) == RT_OK) {
 *     fwrite(piece.bytes, 1, piece.size, stdout);
 *     if (piece.finish != RT_FINISH_NONE) break;
 *   }
 *   rt_generator_release(generator);
 *   rt_model_release(model);
 */
#ifndef RIFTCO_RIFTCO_H
#define RIFTCO_RIFTCO_H

#include "riftco/base.h"
#include "riftco/generate.h"
#include "riftco/model.h"
#include "riftco/session.h"
#include "riftco/tokenizer.h"
#include "riftco/train.h"

#endif /* RIFTCO_RIFTCO_H */
