#include "data/dataset_kind.h"

#include <string.h>

/* clang-format off */
/* MD5 sums, folders, classes and mirrors are those of torchvision (torchvision/datasets/mnist.py);
 * MNIST's second mirror is the one of TensorFlow's data sets. The other digests and the sizes are
 * those of MNIST's original files. */
static const dataset_facts FACTS[DATASET_KINDS] = {
    [DATASET_MNIST] = {
        "mnist", "MNIST", "MNIST/raw", "./data/MNIST/raw",
        {"https://ossci-datasets.s3.amazonaws.com/mnist/",
         "https://storage.googleapis.com/cvdf-datasets/mnist/"},
        {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
        {{"f68b3c2dcbeaaa9fbdd348bbdeb94873",
          "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422,
          "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
         {"d53e105ee54ea40749a09fcbcd1e9432",
          "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881,
          "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
         {"9fb629c4189551a2d022fa330f9573f3",
          "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877,
          "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
         {"ec29112dd5afa0611ce80d1b7f02629c",
          "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542,
          "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"}}},
    [DATASET_FASHION] = {
        "fashion", "Fashion-MNIST", "FashionMNIST/raw", "./data/FashionMNIST/raw",
        {"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"},
        {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
         "Ankle boot"},
        {{.md5 = "8d4fb7e6c68d591d4c3dfef9ec88bf0d"},
         {.md5 = "25c81989df183df01b3e8a0aad5dffbe"},
         {.md5 = "bef4ecab320f06d8554ea6380940ec79"},
         {.md5 = "bb300cfdad3c16e7a12a480ee83cd310"}}},
    [DATASET_KMNIST] = {
        "kmnist", "KMNIST", "KMNIST/raw", "./data/KMNIST/raw",
        {"http://codh.rois.ac.jp/kmnist/dataset/kmnist/"},
        {"o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"},
        {{.md5 = "bdb82020997e1d708af4cf47b453dcf7"},
         {.md5 = "e144d726b3acfaa3e44228e80efcd344"},
         {.md5 = "5c965bf0a639b31b8f53240b1b52f4d7"},
         {.md5 = "7320c461ea6c1c855c0b718fb2a4b134"}}},
};
/* clang-format on */

const dataset_facts *dataset_kind_facts(dataset_kind kind)
{
    return &FACTS[kind];
}

status dataset_kind_parse(const char *name, dataset_kind *out)
{
    for (int kind = 0; kind < DATASET_KINDS; kind++)
        if (strcmp(name, FACTS[kind].name) == 0) {
            *out = (dataset_kind)kind;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "--dataset=%.40s: there are mnist, fashion and kmnist", name);
}
