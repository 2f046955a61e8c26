package secrets

import (
	"path"
	"regexp"
	"strings"
)

// Ordinary reports whether what looks like a secret in a file of this path (with slashes, as git
// writes it) must be told. It is not where made-up secrets belong, as in tests, and where others'
// files lie, as in vendored packages and lock files.
func Ordinary(file string) bool {
	folders, name := path.Split(file)
	for folder := range strings.SplitSeq(folders, "/") {
		if strangeFolders[strings.ToLower(folder)] {
			return false
		}
	}
	return !strangeName.MatchString(name)
}

var strangeFolders = map[string]bool{
	"test": true, "tests": true, "testdata": true, "test-data": true, "test_data": true, "testing": true,
	"fixture": true, "fixtures": true, "__tests__": true, "__fixtures__": true, "__mocks__": true, "mocks": true,
	"__snapshots__": true, "spec": true, "specs": true,
	"vendor": true, "node_modules": true, "bower_components": true, "third_party": true, "site-packages": true,
}

// strangeName are files of tests and of package managers.
var strangeName = regexp.MustCompile(`(?i)^(?:test_.*\.py|conftest\.py|` +
	`.*[._-](?:test|tests|spec)\.[a-z]+|.*Tests?\.(?:java|kt|cs|swift|php|scala)|.*\.snap|` +
	`.*\.lock|.*\.lockfile|go\.(?:mod|sum|work|work\.sum)|(?:package-lock|npm-shrinkwrap)\.json|pnpm-lock\.yaml|` +
	`verification-metadata\.xml|gitleaks\.toml|\.gitleaks\.toml|.*\.min\.(?:js|css)|.*\.map)$`)
