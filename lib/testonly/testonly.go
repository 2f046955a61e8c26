// Package testonly has the constants that tests of whole processes shorten. In the program they are
// constants: it does not look at the environment. What a test of one package changes is no matter of
// this package; it is a field of that package's options.
package testonly

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// Prefix begins the name under which a test gives a constant another value.
const Prefix = "TENDRIL_TEST_"

// program is set by the linker in the programs that test/world builds.
var program string

// lookup returns what a test says; a value that is none ends the process.
func lookup[T any](name string, value T, parse func(string) (T, error)) T {
	if program == "" && !testing.Testing() {
		return value
	}
	text, set := os.LookupEnv(Prefix + name)
	if !set {
		return value
	}
	other, err := parse(text)
	if err != nil {
		panic(fmt.Sprintf("%s%s: %v", Prefix, name, err))
	}
	return other
}

// Duration is value, unless a test says otherwise.
func Duration(name string, value time.Duration) time.Duration {
	return lookup(name, value, time.ParseDuration)
}

// Int is value, unless a test says otherwise.
func Int(name string, value int) int { return lookup(name, value, strconv.Atoi) }

// String is value, unless a test says otherwise.
func String(name, value string) string {
	return lookup(name, value, func(text string) (string, error) { return text, nil })
}
