"""``autopipe doctor`` looks at what training needs of a machine and says what to mend."""
