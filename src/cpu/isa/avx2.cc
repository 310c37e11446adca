namespace heed::cpu {}
