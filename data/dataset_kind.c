#include "data/dataset_kind.h"

#include <string.h>

/* clang-format off */
/* Folders and classes are torchvision's (torchvision/datasets/mnist.py), and so is MNIST's first
 * mirror; the other mirrors are TensorFlow's, Keras's and the authors' own. torchvision's mirrors of
 * Fashion-MNIST and KMNIST speak no https, or are the same host. Sizes and digests of the .gz files
 * are those that TensorFlow's data sets pin (tensorflow_datasets/url_checksums); those of MNIST's
 * plain files were taken from the files themselves. */
static const dataset_facts FACTS[DATASET_KINDS] = {
    [DATASET_MNIST] = {
        "mnist", "MNIST", "MNIST/raw", "./data/MNIST/raw",
        {"https://ossci-datasets.s3.amazonaws.com/mnist/",
         "https://storage.googleapis.com/cvdf-datasets/mnist/"},
        {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
        {{"440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422,
          "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
         {"3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881,
          "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
         {"8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877,
          "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
         {"f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542,
          "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"}}},
    [DATASET_FASHION] = {
        "fashion", "Fashion-MNIST", "FashionMNIST/raw", "./data/FashionMNIST/raw",
        {"https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
         "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"},
        {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
         "Ankle boot"},
        {{"3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26421880, NULL},
         {"a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29515, NULL},
         {"346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4422102, NULL},
         {"67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5148, NULL}}},
    [DATASET_KMNIST] = {
        "kmnist", "KMNIST", "KMNIST/raw", "./data/KMNIST/raw",
        {"https://codh.rois.ac.jp/kmnist/dataset/kmnist/"},
        {"o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"},
        {{"51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4", 18165135, NULL},
         {"e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17", 29497, NULL},
         {"edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5", 3041136, NULL},
         {"20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c", 5120, NULL}}},
};
/* clang-format on */

const dataset_facts *dataset_kind_facts(dataset_kind kind)
{
    return &FACTS[kind];
}

bool dataset_kind_by_labels(const char *sha256, dataset_kind *out)
{
    int labels = mnist_files_index(DATASET_TEST, IDX_LABELS);
    for (int kind = 0; kind < DATASET_KINDS; kind++) {
        const dataset_file *file = &FACTS[kind].files[labels];
        if (strcmp(sha256, file->sha256) == 0 ||
            (file->plain_sha256 != NULL && strcmp(sha256, file->plain_sha256) == 0)) {
            *out = (dataset_kind)kind;
            return true;
        }
    }
    return false;
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
