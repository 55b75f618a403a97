// The bodies of Asio's and Beast's functions, compiled once for the whole program.
#include "net/asio.h"

#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
