from kvatlas import kvatlas

kvatlas()
